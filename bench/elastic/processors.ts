/** @file Processor time of a process tree while it lives, by what the processes are for. Linux only. */
import { readFileSync, readdirSync } from 'node:fs'

export interface ProcessorTime {
  readonly atMs: number
  /** Cell processes, in the order they were started. [s] */
  readonly cells: readonly number[]
  /** The control process: gateway, run loop, store. [s] */
  readonly control: number
  /** Everything else that was started: harnesses, their commands, scorers. [s] */
  readonly others: number
}

interface Entry {
  readonly parent: number
  /** Own, and of children that were waited for. [clock ticks] */
  readonly own: number
  readonly reaped: number
  readonly isCell: boolean
}

/** Ticks a second of /proc on every common Linux. */
const TICKS = 100

function sum(times: readonly number[]): number {
  return times.reduce((total, time) => total + time, 0)
}
const EVERY_MS = 250

/** Looks at the tree below `pid` four times a second until `stop`. */
export class ProcessorMeter {
  readonly #pid: number
  readonly #samples: ProcessorTime[] = []
  readonly #timer: NodeJS.Timeout

  constructor(pid: number) {
    this.#pid = pid
    this.#timer = setInterval(() => this.#look(), EVERY_MS)
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  /** Time used between two moments of the wall clock, by the samples next to them. [s] */
  between(fromMs: number, toMs: number): { readonly cells: number; readonly control: number; readonly others: number } {
    const at = (ms: number): ProcessorTime | undefined =>
      this.#samples.reduce<ProcessorTime | undefined>(
        (best, s) => (best === undefined || Math.abs(s.atMs - ms) < Math.abs(best.atMs - ms) ? s : best),
        undefined,
      )
    const [from, to] = [at(fromMs), at(toMs)]
    if (from === undefined || to === undefined) return { cells: Number.NaN, control: Number.NaN, others: Number.NaN }
    return {
      cells: sum(to.cells) - sum(from.cells),
      control: to.control - from.control,
      others: to.others - from.others,
    }
  }

  #look(): void {
    const all = readProcesses()
    const root = all.get(this.#pid)
    if (root === undefined) return
    const tree = descendants(all, this.#pid)
    const cells = tree.filter((pid) => all.get(pid)?.isCell === true).toSorted((a, b) => a - b)
    const seconds = (pid: number): number => (all.get(pid)?.own ?? 0) / TICKS
    const total = tree.reduce((used, pid) => used + seconds(pid) + (all.get(pid)?.reaped ?? 0) / TICKS, 0)
    const ofCells = cells.map(seconds)
    const control = seconds(this.#pid)
    const others = total - control - sum(ofCells)
    this.#samples.push({ atMs: Date.now(), cells: ofCells, control, others })
  }
}

function readProcesses(): ReadonlyMap<number, Entry> {
  const all = new Map<number, Entry>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'latin1')
      const fields = stat
        .slice(stat.lastIndexOf(')') + 2)
        .split(' ')
        .map(Number)
      const [, parent = 0] = fields
      const [user = 0, system = 0, userReaped = 0, systemReaped = 0] = fields.slice(11, 15)
      const isCell = /^gyre cell-\d+/.test(readFileSync(`/proc/${name}/cmdline`, 'latin1').replaceAll('\0', ' '))
      all.set(Number(name), { parent, own: user + system, reaped: userReaped + systemReaped, isCell })
    } catch {
      // It ended between the listing and the reading.
    }
  }
  return all
}

function descendants(all: ReadonlyMap<number, Entry>, root: number): readonly number[] {
  const found = [root]
  for (let i = 0; i < found.length; i++) {
    for (const [pid, { parent }] of all) if (parent === found[i]) found.push(pid)
  }
  return found
}
