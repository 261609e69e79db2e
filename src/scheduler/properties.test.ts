import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { advance, advanceWith } from './advance.ts'
import { GUARDS } from './guards.ts'
import { checkInvariants } from './invariants.ts'
import { initialState } from './state.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import type { LeverlessConfig } from '../../test/support/scheduler-config.ts'
import { TestWorld } from '../../test/support/scheduler-world.ts'
import type { Advance, WorldOptions } from '../../test/support/scheduler-world.ts'
import type { SchedulerConfig } from './types.ts'
import { waterLevelAllows } from './waterlevel.ts'

const HISTORIES = Number(process.env['GYRE_TEST_HISTORIES'] ?? 700)
/** The same histories on every machine; another seed, and more of them, to look for what these do not show. */
const SEED = Number(process.env['GYRE_TEST_SEED'] ?? 20_261_201)

const shape = fc.record({
  cells: fc.integer({ min: 1, max: 4 }),
  cellSlots: fc.integer({ min: 1, max: 6 }),
  standaloneSlots: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 2 }),
  groupSize: fc.integer({ min: 2, max: 4 }),
  groupsPerStep: fc.integer({ min: 1, max: 3 }),
  stepsPerBurst: fc.integer({ min: 1, max: 3 }),
  carryOver: fc.constantFrom(0, 0, 0.5, 1, 1.34, 2.5, 5),
  totalSteps: fc.integer({ min: 1, max: 7 }),
  trainingCells: fc.integer({ min: 1, max: 3 }),
  demandAware: fc.boolean(),
  placement: fc.constantFrom('latest' as const, 'balanced' as const),
  executionAttempts: fc.integer({ min: 1, max: 3 }),
})

const faults = fc.record({
  seed: fc.nat(),
  deaths: fc.constantFrom(0, 1, 3, 8),
  exclusions: fc.constantFrom(0, 2, 12),
  executionFailures: fc.constantFrom(0, 4),
  throughJson: fc.boolean(),
})

function configOf(
  policy: SchedulerConfig['policy'],
  s: Omit<LeverlessConfig, 'policy' | 'cellRestarts' | 'excludedGroupsLimit'>,
): SchedulerConfig {
  const limits = { cellRestarts: 1000, excludedGroupsLimit: 1000 }
  if (policy === 'elastic') return withLeversOff({ ...s, ...limits, policy })
  if (policy === 'colocate') return withLeversOff({ ...s, ...limits, policy, carryOver: 0 })
  const cells = Math.max(2, s.cells)
  return withLeversOff({ ...s, ...limits, policy, cells, trainingCells: Math.min(s.trainingCells, cells - 1) })
}

function play(config: SchedulerConfig, options: WorldOptions, next: Advance = advance): TestWorld {
  const world = new TestWorld(initialState(config), options, next, (state, previous) => {
    const broken = checkInvariants(state, previous)
    if (broken.length > 0) throw new Error(broken.join('; '))
  })
  world.run()
  return world
}

describe('any history of any cluster keeps every invariant and ends', () => {
  for (const policy of ['elastic', 'colocate', 'async'] as const) {
    test(`under ${policy}`, () => {
      fc.assert(
        fc.property(shape, faults, (s, options) => {
          expect(play(configOf(policy, s), options).state.phase).toBe('done')
        }),
        { numRuns: HISTORIES, seed: SEED },
      )
    }, 120_000)
  }
})

test('a burst that fills up early waits for the groups it still asked for', () => {
  const config = withLeversOff({
    policy: 'async',
    cells: 4,
    cellSlots: 5,
    standaloneSlots: [3],
    groupSize: 4,
    groupsPerStep: 3,
    stepsPerBurst: 1,
    carryOver: 2.5,
    totalSteps: 7,
    trainingCells: 3,
    demandAware: false,
    placement: 'latest',
    executionAttempts: 1,
    cellRestarts: 1000,
    excludedGroupsLimit: 1000,
  })
  const options = { seed: 1672721108, deaths: 0, exclusions: 0, executionFailures: 0, throughJson: false }
  expect(play(config, options).state.phase).toBe('done')
})

/** The first violation that random histories under a broken rule meet. */
function firstViolation(config: SchedulerConfig, deaths: number, next: Advance): string {
  const result = fc.check(
    fc.property(fc.nat(), (seed) => {
      play(config, { seed, deaths, exclusions: 0, executionFailures: deaths * 3, throughJson: false }, next)
    }),
    { numRuns: 500, endOnFailure: true, seed: SEED },
  )
  return String(result.errorInstance)
}

function offByOneCell(level: number, capacity: number, cellSlots: number): boolean {
  return waterLevelAllows(level, capacity + cellSlots, cellSlots)
}

describe('the invariants notice a broken guard', () => {
  const base = configOf('elastic', {
    cells: 3,
    cellSlots: 3,
    standaloneSlots: [],
    groupSize: 2,
    groupsPerStep: 2,
    stepsPerBurst: 1,
    carryOver: 1,
    totalSteps: 8,
    trainingCells: 1,
    demandAware: false,
    placement: 'latest',
    executionAttempts: 9,
  })
  test('a water level off by one cell', () => {
    const guards = { ...GUARDS, waterLevelAllows: offByOneCell }
    // The all-or-nothing reservation refuses most of these moves too; attempts that lost their cell slip past it.
    const config = { ...base, cells: 2, cellSlots: 4, groupSize: 4, groupsPerStep: 1, carryOver: 0, carryOverMin: 0, carryOverMax: 0, totalSteps: 12 }
    expect(firstViolation(config, 16, (state, event, atMs) => advanceWith(guards, state, event, atMs))).toMatch(
      /I2 a move left too little capacity/,
    )
  })

  test('groups taken without regard to staleness', () => {
    const guards = { ...GUARDS, mayAssign: () => true }
    expect(firstViolation(base, 0, (state, event, atMs) => advanceWith(guards, state, event, atMs))).toMatch(/I8/)
  })
})
