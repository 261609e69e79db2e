/** @file What one run of the bench shows, read from its run folder. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { openSqliteStore } from '../../src/adapters/store/sqlite/sqlite-store.ts'
import type { ExecutionRow, GroupRow } from '../../src/ports/store.ts'
import type { RunResult } from '../../src/run/run.ts'
import { presentAttempts } from '../../src/run/ledger.ts'
import { readJsonl } from '../../src/telemetry/jsonl.ts'
import { readStepMetrics } from '../../src/telemetry/run-log.ts'
import type { ProcessorMeter } from './processors.ts'

export interface RunFigures {
  /** From the first dispatch to the boundary after the bursts that count. [s] */
  readonly seconds: number
  readonly rewardPerStep: readonly number[]
  readonly meanStaleness: number
  readonly maxStaleness: number
  readonly meanExecutionSeconds: number
  /** Executions whose time was over, and those that were cut before. */
  readonly timedOut: number
  readonly cut: number
  readonly executions: number
  readonly liveRoleTransfers: number
  readonly requestsMoved: number
  readonly moveMsMedian: number
  readonly moveMsMax: number
  readonly harnessErrors: number
  /** Processor time in the loop. [s] */
  readonly cellSeconds: number
  readonly controlSeconds: number
  readonly otherSeconds: number
  /** Longest chain of dispatches and waits, as if everything but the commands of the executions took no time. [s] */
  readonly criticalPathSeconds: number
  /** Per burst, from its dispatch to the first cell in training, and from there to the end of the burst. [s] */
  readonly rolloutSeconds: number
  readonly trainingSeconds: number
  readonly shares: readonly Readonly<Record<string, number>>[]
}

type Event = Readonly<Record<string, unknown>> & { readonly atMs: number; readonly kind: string }

/** Times of the dispatches of every burst so far. Empty while there is no run. [ms] */
export function dispatchesOf(folder: string): readonly number[] {
  const file = join(folder, 'events.jsonl')
  if (!existsSync(file)) return []
  const events = [...readJsonl(file)] as Event[]
  return firstDispatches(events)
}

/** A burst that lost groups dispatches again: only its first counts. */
function firstDispatches(events: readonly Event[]): readonly number[] {
  const first = new Map<unknown, number>()
  for (const e of events) if (e.kind === 'dispatched' && !first.has(e['burst'])) first.set(e['burst'], e.atMs)
  return [...first.values()]
}

/** @param bursts what counts: everything before the dispatch of the one after them. */
export function figuresOf(folder: string, meter: ProcessorMeter, bursts: number): RunFigures {
  const result = JSON.parse(readFileSync(join(folder, 'summary.json'), 'utf8')) as RunResult
  const all = [...readJsonl(join(folder, 'events.jsonl'))] as Event[]
  const dispatches = firstDispatches(all)
  const [fromMs = Number.NaN, toMs = Number.NaN] = [dispatches[0], dispatches[bursts]]
  const events = all.filter((e) => e.atMs < toMs)
  const steps = readStepMetrics(folder).filter((step) => Number(step['atMs'] ?? step['at_ms']) < toMs)
  const of = (key: string): number[] => steps.map((step) => step[key] ?? Number.NaN)
  const { cells, control, others } = meter.between(fromMs, toMs)
  const books = readBooks(folder)
  const moves = events.filter(
    (e) => e.kind === 'role-transfer' && e['to'] === 'training' && Number(e['liveExecutions']) > 0,
  )
  const moveMs = moves.map((e) => Number(e['durationMs'])).toSorted((a, b) => a - b)
  const durations = books.executions.map((e) => ((e.endedAtMs ?? Number.NaN) - (e.startedAtMs ?? Number.NaN)) / 1000)
  return {
    seconds: (toMs - fromMs) / 1000,
    rewardPerStep: of('reward'),
    meanStaleness: mean(of('staleness_mean')),
    maxStaleness: Math.max(...of('staleness_max')),
    meanExecutionSeconds: mean(durations),
    timedOut: books.executions.filter((e) => e.outcome === 'harness-timeout').length,
    cut: books.executions.filter((e) => e.outcome === 'cut').length,
    executions: books.executions.length,
    liveRoleTransfers: moves.length,
    requestsMoved: moves.reduce((sum, e) => sum + Number(e['requestsMoved']), 0),
    moveMsMedian: moveMs[Math.floor(moveMs.length / 2)] ?? 0,
    moveMsMax: moveMs.at(-1) ?? 0,
    harnessErrors: result.harnessErrors,
    cellSeconds: cells,
    controlSeconds: control,
    otherSeconds: others,
    criticalPathSeconds: criticalPath(folder, books),
    ...phases(events, dispatches.slice(0, bursts), toMs),
    shares: result.cells.map(({ cellId: _id, ...ms }) => {
      const total = Object.values(ms).reduce((a, b) => a + b, 0)
      return Object.fromEntries(Object.entries(ms).map(([key, value]) => [key.replace(/Ms$/, ''), value / total]))
    }),
  }
}

interface Books {
  readonly groups: readonly GroupRow[]
  /** The last attempt of every member of a consumed group. */
  readonly executions: readonly ExecutionRow[]
  /** Which burst took a step. */
  readonly burstOfStep: ReadonlyMap<number, number>
}

function readBooks(folder: string): Books {
  const store = openSqliteStore(join(folder, 'ledger.sqlite'), { durability: 'process' })
  try {
    const groups = store.groups().filter((g) => g.state === 'consumed')
    return {
      groups,
      executions: groups.flatMap((g) => presentAttempts(store.executions(g.groupId))),
      burstOfStep: new Map(store.steps().map((s) => [s.step, s.burst])),
    }
  } finally {
    store.close()
  }
}

/**
 * T(b+1) = max over the groups that burst b consumed of T(burst that dispatched it) + the longest wait of a member.
 * A wait is the time its commands took; what the policy, the gateway and the trainer took counts as nothing.
 */
function criticalPath(folder: string, { groups, executions, burstOfStep }: Books): number {
  const waitOf = new Map<string, number>()
  for (const e of executions) {
    const wait = waited(join(folder, 'executions', e.executionId, 'harness.stderr'))
    waitOf.set(e.groupId, Math.max(waitOf.get(e.groupId) ?? 0, wait))
  }
  const bursts = [...new Set(burstOfStep.values())].toSorted((a, b) => a - b)
  const start = new Map<number, number>([[bursts[0] ?? 0, 0]])
  let end = 0
  for (const [i, burst] of bursts.entries()) {
    const consumed = groups.filter((g) => burstOfStep.get(g.consumedStep ?? -1) === burst)
    end = Math.max(
      start.get(burst) ?? 0,
      ...consumed.map((g) => (start.get(g.burst) ?? 0) + (waitOf.get(g.groupId) ?? 0)),
    )
    const next = bursts[i + 1]
    if (next !== undefined) start.set(next, end)
  }
  return end
}

/** What the mini harness said about its commands. [s] */
function waited(file: string): number {
  const lines = readFileSync(file, 'utf8').matchAll(/^waited (\d+)$/gm)
  return [...lines].reduce((sum, [, ms]) => sum + Number(ms), 0) / 1000
}

function phases(
  events: readonly Event[],
  starts: readonly number[],
  toMs: number,
): { rolloutSeconds: number; trainingSeconds: number } {
  const rollouts: number[] = []
  const trainings: number[] = []
  for (const [i, start] of starts.entries()) {
    const end = starts[i + 1] ?? toMs
    const first = events.find((e) => e.kind === 'micro-step' && e.atMs > start)
    if (first === undefined || first.atMs > end) continue
    rollouts.push((first.atMs - start) / 1000)
    trainings.push((end - first.atMs) / 1000)
  }
  return { rolloutSeconds: mean(rollouts), trainingSeconds: mean(trainings) }
}

export function mean(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => a + b, 0) / numbers.length
}

/** NaN of nothing, which JSON writes as null. */
export function median(numbers: readonly number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1
    ? (sorted[middle] ?? Number.NaN)
    : ((sorted[middle - 1] ?? Number.NaN) + (sorted[middle] ?? Number.NaN)) / 2
}
