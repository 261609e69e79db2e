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

test('gradients kept of executions count once, whoever dies, refuses or leaves', () => {
  const counts = { applied: 0, refused: 0, lost: 0 }
  fc.assert(
    fc.property(shapes, faultsOfAnyKind, fc.integer({ min: 4, max: 8 }), (shape, options, groupSize) => {
      // Engines beside the cells hold every execution, so that the cells train all the time.
      const waiting = { ...shape, groupSize, standaloneSlots: [64], earlyForward: true }
      const { log, state } = play(configOf('elastic', waiting), { ...options, enginesReturn: true })
      expect(state.phase).toBe('done')
      const applied = log.filter((c) => c.kind === 'apply-held')
      const trained = log.filter((c) => c.kind === 'train')
      const name = ({ step, attempt, claim }: (typeof applied)[number] | (typeof trained)[number]): string =>
        `${step}.${attempt} ${claim.groupId}/${claim.index}`
      const again = new Set(trained.map(name))
      counts.applied += applied.length
      counts.refused += applied.filter((c) => again.has(name(c))).length
      counts.lost += log.filter((c) => c.kind === 'hold-gradient').length - applied.length
    }),
    { numRuns: HISTORIES, seed: SEED },
  )
  expect(Math.min(counts.applied, counts.refused, counts.lost)).toBeGreaterThan(0)
}, 600_000)

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
