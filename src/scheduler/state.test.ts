import { describe, expect, test } from 'vitest'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { checkConfig, configWarnings } from './state.ts'
import type { SchedulerConfig } from './types.ts'

const config = withLeversOff({
  policy: 'elastic',
  cells: 4,
  cellSlots: 8,
  standaloneSlots: [],
  groupSize: 4,
  groupsPerStep: 2,
  stepsPerBurst: 2,
  carryOver: 1,
  totalSteps: 8,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
  cellRestarts: 3,
  excludedGroupsLimit: 3,
})

const ALL: Partial<SchedulerConfig> = {
  carryOverMin: 0,
  carryOverMax: 2.5,
  stragglerQuorum: 0.75,
  stragglerGrace: 0.25,
  overCommit: 1.5,
  demandAware: true,
  placement: 'balanced',
  kvHandover: true,
  earlyForward: false,
}

describe('levers', () => {
  test('are all open to elastic, and those that are not about roles to the baselines', () => {
    const colocate = { policy: 'colocate' as const, carryOver: 0, carryOverMax: 0 }
    for (const policy of [{}, { policy: 'async' as const }, colocate]) {
      expect(() => checkConfig({ ...config, ...ALL, ...policy })).not.toThrow()
    }
  })

  test('are closed to qwengyre, but for a fixed phi and the hand-over, which are published', () => {
    expect(() => checkConfig({ ...config, policy: 'qwengyre', kvHandover: true })).not.toThrow()
    for (const [change, word] of [
      [{ demandAware: true }, /without demandAware/],
      [{ placement: 'balanced' }, /without placement balanced/],
      [{ stragglerQuorum: 0.75 }, /without stragglerQuorum 0.75/],
      [{ overCommit: 1.5 }, /without overCommit 1.5/],
      [{ carryOverMax: 2 }, /without a phi between 1 and 2/],
    ] as const) {
      expect(() => checkConfig({ ...config, policy: 'qwengyre', ...change })).toThrow(word)
    }
  })

  test('with values that mean nothing are refused', () => {
    for (const change of [
      { stragglerQuorum: 0 },
      { stragglerQuorum: 1.5 },
      { stragglerGrace: -1 },
      { stragglerGrace: Number.POSITIVE_INFINITY },
      { overCommit: 0.5 },
      { overCommit: Number.NaN },
      { carryOverMin: 1.5 },
      { carryOverMax: 0.5 },
      { carryOverMax: Number.POSITIVE_INFINITY },
      { policy: 'colocate' as const, carryOver: 0, carryOverMin: 0 },
    ]) {
      expect(() => checkConfig({ ...config, ...change }), JSON.stringify(change)).toThrow(
        /stragglerQuorum|stragglerGrace|overCommit|carryOver/,
      )
    }
  })

  test('that change nothing are pointed out', () => {
    expect(configWarnings(config)).toEqual([])
    expect(configWarnings({ ...config, groupSize: 2, stragglerQuorum: 0.75 })).toEqual([
      expect.stringMatching(/nothing is cut/),
    ])
  })
})
