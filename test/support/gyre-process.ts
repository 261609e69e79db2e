/** @file Real `gyre` processes for end-to-end tests, each test in a folder of its own with a temp folder of its own. */
import { type ChildProcess, spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSqliteStore } from '../../src/adapters/store/sqlite/sqlite-store.ts'
import type { Store } from '../../src/ports/store.ts'
import { readJsonl } from '../../src/telemetry/jsonl.ts'

const ROOT = resolve(import.meta.dirname, '../..')
export const MAIN = join(ROOT, 'dist/cli/main.js')
export const STEADY_HARNESS = join(import.meta.dirname, 'steady-harness.mjs')
/** What a process or a folder gets to disappear after its owner. [ms] */
const LEFTOVER_MS = 20_000
const POLL_MS = 10

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly out: string
  readonly err: string
}

export type Event = Readonly<Record<string, unknown>>

/** One running `gyre`. */
export class GyreProcess {
  readonly ended: Promise<Ended>
  readonly #child: ChildProcess
  #out = ''
  #err = ''
  #hasEnded = false

  constructor(child: ChildProcess) {
    this.#child = child
    child.stdout?.on('data', (chunk: Buffer) => (this.#out += chunk.toString()))
    child.stderr?.on('data', (chunk: Buffer) => (this.#err += chunk.toString()))
    this.ended = new Promise((done, reject) => {
      child.once('error', reject)
      child.once('close', (code, signal) => {
        this.#hasEnded = true
        done({ code, signal, out: this.#out, err: this.#err })
      })
    })
  }

  get pid(): number {
    return this.#child.pid ?? -1
  }

  get hasEnded(): boolean {
    return this.#hasEnded
  }

  kill(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  /** What it said so far, for a message. */
  said(): string {
    return `${this.#out.slice(-3000)}\n${this.#err.slice(-3000)}`
  }

  /** Waits until `look` gives something. @throws Error when the process ends first, or after `limitMs`. */
  async until<T>(what: string, look: () => T | undefined, limitMs = 120_000): Promise<T> {
    const endsAt = performance.now() + limitMs
    for (;;) {
      const found = look()
      if (found !== undefined) return found
      if (this.#hasEnded) throw new Error(`gyre ended before ${what}:\n${this.said()}`)
      if (performance.now() > endsAt) throw new Error(`${what} did not happen within ${limitMs} ms:\n${this.said()}`)
      await sleep(POLL_MS)
    }
  }
}

/** Overrides of the run file, as dotted keys. */
export type Overrides = Readonly<Record<string, unknown>>

/** A policy that trains in milliseconds; it learns nothing worth having. */
const TINY: Overrides = {
  seed: 1,
  'harness.name': 'command',
  'harness.argv': ['node', STEADY_HARNESS],
  'sandbox.kind': 'process',
  'tasks.generate': { train: 16, heldOut: 2, minStops: 2, maxStops: 3 },
  'policy.model': { hiddenSize: 32, layers: 1, heads: 2, kvHeads: 1, ffSize: 64, context: 1024 },
  'policy.tokenizer.vocabSize': 560,
  'warmstart.enabled': true,
  'warmstart.demonstrations': 40,
  'warmstart.excerptSteps': 2,
  'warmstart.steps': 2,
  'rollout.groupSize': 4,
  'rollout.maxTokens': 16,
  'rollout.maxCalls': 8,
  'training.groupsPerStep': 2,
  'training.steps': 4,
  'training.stepsPerBurst': 2,
  'elastic.cells': 2,
  'elastic.slotsPerCell': 8,
  'elastic.carryOver': 0.5,
}

/** A folder with a temp folder in it, so that whatever gyre leaves behind is seen. */
export class Place {
  readonly root = mkdtempSync(join(tmpdir(), 'gyre-e2e-'))
  readonly #processes: GyreProcess[] = []

  constructor() {
    mkdirSync(this.#tmp)
  }

  get #tmp(): string {
    return this.file('tmp')
  }

  file(...names: readonly string[]): string {
    return join(this.root, ...names)
  }

  write(name: string, text: string): string {
    const path = this.file(name)
    mkdirSync(join(path, '..'), { recursive: true })
    writeFileSync(path, text)
    return path
  }

  /** JSON is YAML. An override that is undefined takes the key out. */
  runFile(name: string, overrides: Overrides = {}): string {
    const run: Record<string, unknown> = {}
    for (const [key, value] of Object.entries({ 'paths.runs': this.file('runs'), ...TINY, ...overrides })) {
      const path = key.split('.')
      const last = path.pop() ?? ''
      let at = run
      for (const part of path) at = (at[part] ??= {}) as Record<string, unknown>
      if (value === undefined) delete at[last]
      else at[last] = value
    }
    return this.write(`${name}.yaml`, JSON.stringify(run, null, 2))
  }

  run(name: string): string {
    return this.file('runs', name)
  }

  /** Starts `gyre ...args`. */
  gyre(...args: readonly string[]): GyreProcess {
    return this.gyreWith({}, ...args)
  }

  /** The same with more in its environment. */
  gyreWith(more: Readonly<Record<string, string>>, ...args: readonly string[]): GyreProcess {
    const env = { ...process.env, TMPDIR: this.#tmp, NO_COLOR: '1', ...more }
    const child = spawn(process.execPath, [MAIN, ...args], { cwd: this.root, env, stdio: ['ignore', 'pipe', 'pipe'] })
    const gyre = new GyreProcess(child)
    this.#processes.push(gyre)
    return gyre
  }

  events(name: string): readonly Event[] {
    return readJsonl(join(this.run(name), 'events.jsonl'))
  }

  summary(name: string): Readonly<Record<string, unknown>> {
    return JSON.parse(readFileSync(join(this.run(name), 'summary.json'), 'utf8')) as Record<string, unknown>
  }

  /** Reads the ledger of a run and closes it again. */
  ledger<T>(name: string, read: (store: Store) => T): T {
    const store = openSqliteStore(join(this.run(name), 'ledger.sqlite'), { access: 'read' })
    try {
      return read(store)
    } finally {
      store.close()
    }
  }

  /** Processes and temp files that are still there once everything had time to go; [] is right. */
  async leftovers(): Promise<readonly string[]> {
    const endsAt = performance.now() + LEFTOVER_MS
    for (;;) {
      const found = [...this.#running(), ...this.#tempFiles()]
      if (found.length === 0 || performance.now() > endsAt) return found
      await sleep(100)
    }
  }

  /** Ends what is left and removes the folder. */
  async close(): Promise<void> {
    for (const gyre of this.#processes) if (!gyre.hasEnded) gyre.kill('SIGKILL')
    await Promise.allSettled(this.#processes.map(async (gyre) => gyre.ended))
    await this.leftovers()
    for (const { pid } of processes().filter((p) => this.#owns(p.pid))) killQuietly(pid)
    rmSync(this.root, { recursive: true, force: true, maxRetries: 3 })
  }

  #running(): readonly string[] {
    return processes()
      .filter(({ pid }) => this.#owns(pid))
      .map(({ pid, command }) => `process ${pid} ${command}`)
  }

  /** By its working folder, its arguments or its environment. */
  #owns(pid: number): boolean {
    if (pid === process.pid) return false
    const texts = ['cmdline', 'environ'].map((name) => readOrEmpty(`/proc/${pid}/${name}`))
    return [...texts, linkOrEmpty(`/proc/${pid}/cwd`)].some((text) => text.includes(this.root))
  }

  #tempFiles(): readonly string[] {
    return readdirSync(this.#tmp, { recursive: true, encoding: 'utf8' })
      .filter((name) => !/^gyre-\d+$/.test(name))
      .map((name) => `temp file ${name}`)
  }
}

interface RunningProcess {
  readonly pid: number
  readonly parent: number
  /** Its title when it set one. */
  readonly command: string
}

/** Live processes; none where there is no /proc. */
export function processes(): readonly RunningProcess[] {
  if (!existsSync('/proc/self/stat')) return []
  return readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name)) return []
    const stat = readOrEmpty(`/proc/${name}/stat`)
    const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (stat === '' || state === 'Z' || state === 'X') return []
    const command = readOrEmpty(`/proc/${name}/cmdline`).replaceAll('\0', ' ').trim()
    return [{ pid: Number(name), parent: Number(parent), command }]
  })
}

/** Process ids of the cells of a control process, by index; undefined for one that is not up. */
export function cellPids(controlPid: number): readonly (number | undefined)[] {
  const cells = processes().filter((p) => p.parent === controlPid)
  return [0, 1].map((index) => cells.find((p) => p.command.startsWith(`gyre cell-${index}`))?.pid)
}

/** All processes below a process, itself first. */
export function familyOf(pid: number): readonly number[] {
  const all = processes()
  const family = [pid]
  for (const parent of family) family.push(...all.filter((p) => p.parent === parent).map((p) => p.pid))
  return family
}

export function isRunning(pid: number): boolean {
  return processes().some((p) => p.pid === pid)
}

export function killQuietly(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // It is gone already.
  }
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}

function linkOrEmpty(path: string): string {
  try {
    return readlinkSync(path)
  } catch {
    return ''
  }
}
