/** @file What a seed decides beforehand: the cluster, and which faults meet it when. */
import { hashSeed, seededRng } from '../../src/core/rng.ts'
import type { Rng } from '../../src/core/rng.ts'
import type { SchedulerConfig } from '../../src/scheduler/types.ts'
import { withLeversOff } from '../support/scheduler-config.ts'
import type { LeverlessConfig } from '../support/scheduler-config.ts'

/** Verbs of a cell that a crash can be aimed at. */
export const VERBS = [
  'enter-training',
  'enter-rollout',
  'pull-weights',
  'set-policy-version',
  'zero-gradients',
  'forward-backward',
  'reduce-gradients',
  'optimizer-step',
  'save-checkpoint',
  'load-checkpoint',
  'pin-kv',
  'fetch-kv',
  'pinned-kv',
  'kv-blocks',
  'release-kv',
  'generate',
  'weights',
  'gradients',
] as const
export type Verb = (typeof VERBS)[number]

export interface Crash {
  readonly cell: number
  readonly verb: Verb
  readonly when: 'before' | 'after'
  /** The how-manieth time the cell is asked for it, from 1. */
  readonly nth: number
}

/** Faults that come at a time. */
export type Blow =
  | { readonly kind: 'kill' | 'hang'; readonly atMs: number; readonly cell: number }
  | {
      readonly kind: 'pause' | 'slow' | 'partition'
      readonly atMs: number
      readonly cell: number
      readonly forMs: number
    }
  | { readonly kind: 'disk-full' | 'control-stall'; readonly atMs: number; readonly forMs: number }
  | {
      readonly kind: 'control-kill'
      readonly atMs: number
      readonly downMs: number
      /** Whether cells end with their owner, or go on with the epochs they know. */
      readonly cells: 'end' | 'survive'
      /** Whether the next owner asks surviving cells for their epochs, or begins at 1 again. */
      readonly asksEpochs: boolean
    }
  | {
      readonly kind: 'standalone-down' | 'standalone-slow'
      readonly atMs: number
      readonly forMs: number
      readonly engine: number
    }

/** Chances while faults last. [0, 1] */
export interface Rates {
  readonly requestLost: number
  readonly answerLost: number
  /** Of the losses: that the caller is told nothing. */
  readonly silent: number
  readonly repeated: number
  /** That a request is overtaken by later ones. */
  readonly late: number
  readonly streamBroken: number
  readonly restartFails: number
  readonly restartHangs: number
  readonly sandbox: number
  readonly launch: number
  readonly harnessCrash: number
  readonly harnessHang: number
  readonly ignoresSignal: number
  readonly score: number
  readonly scoreHang: number
}

export interface Plan {
  readonly seed: number
  readonly config: SchedulerConfig
  readonly rates: Rates
  /** In order of time. */
  readonly blows: readonly Blow[]
  readonly crashes: readonly Crash[]
  /** From then on nothing new goes wrong. [ms] */
  readonly quietFromMs: number
}

const pick = <T>(rng: Rng, values: readonly T[]): T => values[rng.below(values.length)] as T

export function planOf(seed: number): Plan {
  const rng = seededRng(hashSeed('plan', seed))
  const config = configOf(rng)
  const quietFromMs = 1500 + rng.below(4000)
  const count = pick(rng, [0, 1, 1, 2, 3, 5])
  const blows = Array.from({ length: count }, () => blowOf(rng, config, quietFromMs)).sort((a, b) => a.atMs - b.atMs)
  const crashes = Array.from({ length: pick(rng, [0, 1, 2, 3]) }, () => crashOf(rng, config))
  return { seed, config, rates: ratesOf(rng), blows, crashes, quietFromMs }
}

function configOf(rng: Rng): SchedulerConfig {
  const policy = pick(rng, ['elastic', 'elastic', 'elastic', 'qwengyre', 'colocate', 'async'] as const)
  const cells = policy === 'async' ? 2 + rng.below(3) : 1 + rng.below(4)
  const carryOver = policy === 'colocate' ? 0 : pick(rng, [0, 0.5, 0.5, 1])
  const hasLevers = policy === 'elastic'
  const isCutting = hasLevers && rng.below(3) === 0
  return {
    ...withLeversOff(basis(rng, policy, cells, carryOver)),
    carryOverMax: hasLevers && rng.below(3) === 0 ? carryOver + 1 : carryOver,
    stragglerQuorum: isCutting ? 0.5 : 1,
    stragglerGrace: isCutting ? 0.5 : 0,
    overCommit: hasLevers && rng.below(3) === 0 ? 1.5 : 1,
    kvHandover: policy !== 'qwengyre' && rng.below(2) === 0,
    earlyForward: false,
  }
}

function basis(rng: Rng, policy: SchedulerConfig['policy'], cells: number, carryOver: number): LeverlessConfig {
  return {
    policy,
    cells,
    cellSlots: 2 + rng.below(5),
    standaloneSlots: pick(rng, [[], [], [], [2], [3, 1]]),
    groupSize: 2 + rng.below(2),
    groupsPerStep: 1 + rng.below(2),
    stepsPerBurst: 1 + rng.below(2),
    carryOver,
    totalSteps: 2 + rng.below(3),
    trainingCells: Math.min(cells - 1, 1 + rng.below(2)) || 1,
    demandAware: rng.below(2) === 0 && policy !== 'qwengyre',
    placement: policy === 'qwengyre' ? 'latest' : pick(rng, ['balanced', 'latest'] as const),
    executionAttempts: 3,
    cellRestarts: 1000,
    excludedGroupsLimit: 1000,
  }
}

function ratesOf(rng: Rng): Rates {
  const bad = (...values: readonly number[]): number => pick(rng, values)
  return {
    requestLost: bad(0, 0, 0.01, 0.03),
    answerLost: bad(0, 0, 0.01, 0.03),
    silent: bad(0, 0.5, 1),
    repeated: bad(0, 0.05, 0.3),
    late: bad(0, 0.02, 0.1),
    streamBroken: bad(0, 0, 0.1),
    restartFails: bad(0, 0.3),
    restartHangs: bad(0, 0, 0.2),
    sandbox: bad(0, 0.04),
    launch: bad(0, 0.04),
    harnessCrash: bad(0, 0.1),
    harnessHang: bad(0, 0, 0.05),
    ignoresSignal: bad(0, 0.5),
    score: bad(0, 0, 0.15),
    scoreHang: bad(0, 0, 0.03),
  }
}

function blowOf(rng: Rng, config: SchedulerConfig, untilMs: number): Blow {
  const atMs = 20 + rng.below(untilMs)
  const cell = rng.below(config.cells)
  const forMs = 20 + rng.below(pick(rng, [200, 1500, 5000]))
  const kind = pick(rng, [
    'kill',
    'kill',
    'kill',
    'hang',
    'pause',
    'slow',
    'partition',
    'partition',
    'disk-full',
    'control-stall',
    'control-kill',
    'control-kill',
    'standalone-down',
    'standalone-slow',
  ] as const)
  switch (kind) {
    case 'kill':
    case 'hang':
      return { kind, atMs, cell }
    case 'pause':
    case 'slow':
    case 'partition':
      return { kind, atMs, cell, forMs }
    case 'control-kill': {
      const cells = pick(rng, ['end', 'end', 'survive'] as const)
      return { kind, atMs, downMs: 50 + rng.below(400), cells, asksEpochs: rng.below(2) === 0 }
    }
    case 'disk-full':
    case 'control-stall':
      return { kind, atMs, forMs }
    case 'standalone-down':
    case 'standalone-slow': {
      const { length } = config.standaloneSlots
      return length === 0 ? { kind: 'kill', atMs, cell } : { kind, atMs, forMs, engine: rng.below(length) }
    }
    default:
      return kind satisfies never
  }
}

/** Verbs of which a history has few: the first one is the one to hit. */
const RARE: ReadonlySet<Verb> = new Set([
  'pin-kv',
  'fetch-kv',
  'pinned-kv',
  'kv-blocks',
  'release-kv',
  'reduce-gradients',
])

function crashOf(rng: Rng, config: SchedulerConfig): Crash {
  const cell = rng.below(config.cells)
  const verb = pick(rng, VERBS)
  const when = pick(rng, ['before', 'after'] as const)
  const nth = 1 + rng.below(5)
  return { cell, verb, when, nth: RARE.has(verb) ? 1 : nth }
}
