/** @file Random clusters, levers and faults for the scheduler's property tests, and one history of them. */
import fc from 'fast-check'
import { hashSeed } from '../../src/core/rng.ts'
import { advance } from '../../src/scheduler/advance.ts'
import { checkInvariants } from '../../src/scheduler/invariants.ts'
import { initialState } from '../../src/scheduler/state.ts'
import type { SchedulerConfig, SchedulerPolicy } from '../../src/scheduler/types.ts'
import { TestWorld } from './scheduler-world.ts'
import type { WorldFaults, WorldOptions } from './scheduler-faults.ts'
import type { Advance } from './scheduler-world.ts'

/** The same histories on every machine; another seed, and more of them, to look for what these do not show. */
export const SEED = Number(process.env['GYRE_TEST_SEED'] ?? 20_261_201)
export const HISTORIES = Number(process.env['GYRE_TEST_HISTORIES'] ?? 500)

const NO_LIMITS = { cellRestarts: 1000, excludedGroupsLimit: 1000 }

export const shapes = fc.record({
  cells: fc.integer({ min: 1, max: 4 }),
  cellSlots: fc.integer({ min: 1, max: 6 }),
  standaloneSlots: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 2 }),
  groupSize: fc.integer({ min: 2, max: 4 }),
  groupsPerStep: fc.integer({ min: 1, max: 3 }),
  stepsPerBurst: fc.integer({ min: 1, max: 3 }),
  carryOver: fc.constantFrom(0, 0, 0.5, 1, 1.34, 2.5, 5),
  /** Below and above it, what phi may become; 0 and 0 keep it fixed. */
  carryOverBelow: fc.constantFrom(0, 0, 1),
  carryOverAbove: fc.constantFrom(0, 0, 0.5, 2),
  stragglerQuorum: fc.constantFrom(1, 1, 0.5, 0.75),
  stragglerGrace: fc.constantFrom(0, 0.25, 2),
  overCommit: fc.constantFrom(1, 1, 1.5, 2),
  kvHandover: fc.boolean(),
  earlyForward: fc.boolean(),
  totalSteps: fc.integer({ min: 1, max: 7 }),
  trainingCells: fc.integer({ min: 1, max: 3 }),
  demandAware: fc.boolean(),
  placement: fc.constantFrom('latest' as const, 'balanced' as const),
  executionAttempts: fc.integer({ min: 1, max: 3 }),
})
export type Shape = typeof shapes extends fc.Arbitrary<infer T> ? T : never

export const faultsOfAnyKind: fc.Arbitrary<WorldOptions> = fc.record({
  seed: fc.nat(),
  deaths: fc.constantFrom(0, 0, 1, 3, 8),
  lostAnswers: fc.constantFrom(0, 0, 2, 5),
  engineDeaths: fc.constantFrom(0, 1, 4),
  enginesReturn: fc.constantFrom(true, true, false),
  exclusions: fc.constantFrom(0, 2, 12),
  executionFailures: fc.constantFrom(0, 4),
  echoes: fc.constantFrom(0, 0, 20),
  controlDeaths: fc.constantFrom(0, 0, 0, 2),
  stops: fc.constantFrom(0, 0, 0, 1),
  clockJumps: fc.boolean(),
  throughJson: fc.boolean(),
})

/** A cluster that this policy can run; what a policy has no use for is off. */
export function configOf(policy: SchedulerPolicy, shape: Shape): SchedulerConfig {
  const { carryOverBelow, carryOverAbove, ...rest } = shape
  const { carryOver, cells, trainingCells, standaloneSlots } = shape
  const base = { ...rest, ...NO_LIMITS, policy, carryOverMin: carryOver, carryOverMax: carryOver }
  const published = {
    stragglerQuorum: 1,
    overCommit: 1,
    demandAware: false,
    placement: 'latest',
    earlyForward: false,
  } as const
  switch (policy) {
    case 'elastic':
      return {
        ...base,
        carryOverMin: Math.max(0, carryOver - carryOverBelow),
        carryOverMax: carryOver + carryOverAbove,
      }
    case 'qwengyre':
      return { ...base, ...published }
    case 'colocate':
      return { ...base, carryOver: 0, carryOverMin: 0, carryOverMax: 0 }
    case 'async': {
      // With engines beside them, every cell may train always.
      const rolling = standaloneSlots.length > 0 ? 0 : 1
      const all = Math.max(1 + rolling, cells)
      return { ...base, cells: all, trainingCells: Math.min(trainingCells, all - rolling) }
    }
    default:
      return policy satisfies never
  }
}

/** @throws what is broken: an invariant of the scheduler, or a promise in the books of the world. */
export function play(config: SchedulerConfig, options: WorldOptions, next: Advance = advance): TestWorld {
  // Under `async` nothing else may be left to roll out: cells never change their role.
  const enginesReturn = options.enginesReturn !== false || config.policy === 'async'
  const world = new TestWorld(initialState(config), { ...options, enginesReturn }, next, (state, previous) => {
    const broken = checkInvariants(state, previous)
    if (broken.length > 0) throw new Error(broken.join('; '))
  })
  world.run()
  return world
}

/** What the first of 500 histories that breaks anything breaks; '' when none does. */
export function firstViolation(config: SchedulerConfig, faults: WorldFaults, next: Advance): string {
  for (let i = 0; i < 500; i++) {
    try {
      const world = play(config, { ...faults, seed: hashSeed(SEED, i), clockJumps: true }, next)
      if (world.state.phase === 'failed') throw new Error(`the run failed: ${world.state.failure}`)
    } catch (error) {
      return String(error)
    }
  }
  return ''
}
