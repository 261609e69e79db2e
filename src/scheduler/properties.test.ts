import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { configOf, faultsOfAnyKind, HISTORIES, play, SEED, shapes } from '../../test/support/scheduler-histories.ts'

describe('any history of any cluster keeps every invariant and ends', () => {
  for (const policy of ['elastic', 'qwengyre', 'colocate', 'async'] as const) {
    test(`under ${policy}`, () => {
      fc.assert(
        fc.property(shapes, faultsOfAnyKind, (shape, options) => {
          expect(play(configOf(policy, shape), options).state.phase).toBe('done')
        }),
        { numRuns: HISTORIES, seed: SEED },
      )
    }, 600_000)
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
  expect(play(config, { seed: 1672721108 }).state.phase).toBe('done')
})
