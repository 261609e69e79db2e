import { describe, expect, test } from 'vitest'
import { groupId } from '../core/ids.ts'
import { runFluid } from '../../test/support/fluid-world.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import {
  burstTime,
  chooseCarryOver,
  choices,
  expectedStaleness,
  leavesTraining,
  quantile,
  rememberCompletion,
} from './carry-over.ts'
import { initialState } from './state.ts'
import { draftOf } from './tick.ts'
import type { GroupSlot, ScheduleHistory, SchedulerConfig, SchedulerState } from './types.ts'

const config: SchedulerConfig = {
  ...withLeversOff({
    policy: 'elastic',
    cells: 4,
    cellSlots: 32,
    standaloneSlots: [],
    groupSize: 4,
    groupsPerStep: 4,
    stepsPerBurst: 2,
    carryOver: 1,
    totalSteps: 100,
    trainingCells: 1,
    demandAware: false,
    placement: 'latest',
    executionAttempts: 1,
    cellRestarts: 3,
    excludedGroupsLimit: 3,
  }),
  carryOverMin: 0,
  carryOverMax: 2,
}

const QUICK = [{ workMs: 30, tailMs: 0 }]

/** Training that nothing could be hidden behind. */
const BUSY = [{ workMs: 20_000, tailMs: 100 }]

function running(dispatchVersion: number): GroupSlot {
  return {
    groupId: groupId(`r${dispatchVersion}`),
    dispatchVersion,
    phase: 'running',
    readyOrder: undefined,
    trainedStep: undefined,
    dispatchedAtMs: 0,
    startedAtMs: 0,
    quorumMs: undefined,
    members: [],
  }
}

function stateWith(
  times: readonly number[],
  bursts: ScheduleHistory['bursts'] = QUICK,
  change: Partial<SchedulerConfig> = {},
  groups: readonly GroupSlot[] = [],
): SchedulerState {
  const completions = times.map((elapsedMs) => ({ dispatchVersion: 0, elapsedMs }))
  return { ...initialState({ ...config, ...change }), history: { completions, bursts }, groups }
}

/** Seven groups at 100 ms and one slow one. */
const SLOW_GROUP = [100, 100, 100, 100, 100, 100, 100, 800]
/** Evenly spread. */
const SPREAD = Array.from({ length: 21 }, (_, i) => 500 + 50 * i)

function took(workMs: number, tailMs: number): ScheduleHistory['bursts'] {
  return [{ workMs, tailMs }]
}

describe('the predicted time of a burst', () => {
  test('waits for the groups it consumes, for what is too old to wait, and for training', () => {
    expect(quantile([0, 10, 20], 0.75)).toBe(15)
    // mu B = 3: of 3 groups the last is there at three quarters, the third of 4 at 0.6, and the slowest has two bursts.
    const shape = { stepsPerBurst: 1, groupsPerStep: 3 }
    expect(burstTime(SPREAD, took(0, 0), shape, 0)).toBeCloseTo(1250, 9)
    expect(burstTime(SPREAD, took(0, 70), shape, 1 / 3)).toBeCloseTo(1100 + 70, 9)
    expect(burstTime([100, 100, 100, 100, 1300], took(0, 70), shape, 1 / 3)).toBeCloseTo(100 + 70, 9)
    expect(burstTime([100, 100, 100, 1300, 1300], took(0, 70), shape, 1)).toBeCloseTo(1300 / 2 + 70, 9)
    // Half of the groups are there at 1000. What is carried over is trained meanwhile.
    expect(burstTime(SPREAD, took(2000, 70), shape, 0)).toBe(3000)
    expect(burstTime(SPREAD, took(2000, 70), shape, 0.25)).toBe(2500)
    expect(burstTime(SPREAD, took(2000, 70), shape, 2)).toBe(2000)
    expect(burstTime(SPREAD, [...took(2000, 0), ...took(3000, 0)], shape, 0)).toBe(3500)
  })

  test('costs staleness: every group carried over is trained mu steps later', () => {
    expect(expectedStaleness(4, 0)).toBe(1.5)
    expect(expectedStaleness(2, 1)).toBe(1.5)
  })
})

describe('phi', () => {
  test('is what is configured while there is too little history', () => {
    expect(chooseCarryOver(stateWith(SLOW_GROUP.slice(1)))).toBe(1)
    expect(chooseCarryOver(stateWith(SLOW_GROUP, []))).toBe(1)
  })

  test('rises just far enough to leave one slow group to the next burst', () => {
    expect(chooseCarryOver(stateWith(SLOW_GROUP))).toBe(0.25)
  })

  test('rises as long as 0.1 of staleness buys 1 %', () => {
    const chosen = chooseCarryOver(stateWith(SPREAD, QUICK, { carryOverMax: 4 }))
    const time = (phi: number): number => burstTime(SPREAD, QUICK, config, phi)
    const gainOf = (from: number, to: number): number => Math.log(time(from) / time(to)) / (to - from)
    const price = Math.log(1.01) / 0.1
    expect(chosen).toBe(1.75)
    expect(gainOf(0, chosen)).toBeGreaterThan(price)
    expect(gainOf(chosen, chosen + 0.25)).toBeLessThan(price)
  })

  test('stays at its least when groups are alike, or training is what takes the time', () => {
    expect(chooseCarryOver(stateWith(SPREAD.map(() => 1000)))).toBe(0)
    expect(chooseCarryOver(stateWith(SLOW_GROUP, BUSY))).toBe(0)
    expect(chooseCarryOver(stateWith(SLOW_GROUP, BUSY, { carryOverMin: 0.5 }))).toBe(0.5)
  })

  test('does not change when it is fixed', () => {
    const fixed = { carryOver: 1.34, carryOverMin: 1.34, carryOverMax: 1.34 }
    expect(chooseCarryOver(stateWith(SLOW_GROUP, QUICK, fixed))).toBe(1.34)
  })

  test('is not chosen from a dispatch of which a group is still out: the slowest are missing', () => {
    expect(chooseCarryOver(stateWith(SLOW_GROUP, QUICK, {}, [running(0)]))).toBe(1)
    expect(chooseCarryOver(stateWith(SLOW_GROUP, QUICK, {}, [running(2)]))).toBe(0.25)
  })

  test('is chosen from quarters between its bounds, both of them possible', () => {
    const range = { carryOver: 0.5, carryOverMin: 0.4, carryOverMax: 1 }
    expect(choices({ ...config, ...range })).toEqual([0.4, 0.65, 0.9, 1])
  })

  test('leaves the core its place, but for async, where it has one', () => {
    // One cell of 8 slots stays: two groups, half a step.
    const small = { ...config, cells: 2, cellSlots: 8 }
    expect(choices(small)).toEqual([0, 0.25, 0.5])
    expect(leavesTraining({ ...small, standaloneSlots: [4] }, 0.75)).toBe(true)
    expect(choices({ ...small, policy: 'async' }).at(-1)).toBe(2)
    expect(choices({ ...small, carryOver: 2, carryOverMin: 2 })).toEqual([2])
  })
})

describe('history', () => {
  test('is bounded, and forgets whole dispatches, the oldest first', () => {
    const state = draftOf(initialState(config))
    for (let i = 0; i < 1000; i++) {
      state.nowMs = i
      rememberCompletion(state, { ...running(2 * Math.floor(i / 10)), dispatchedAtMs: 0, members: [] })
    }
    const { completions } = state.history
    expect(completions.length).toBeLessThanOrEqual(256)
    expect(completions.length).toBeGreaterThan(240)
    expect(completions[0]).toEqual({ dispatchVersion: 2 * 75, elapsedMs: 750 })
  })

  test('has no time of a group that an earlier process dispatched', () => {
    const state = draftOf(initialState(config))
    rememberCompletion(state, { ...running(0), dispatchedAtMs: undefined, members: [] })
    expect(state.history.completions).toEqual([])
  })

  test('holds what a burst took: rollout alone, then training', () => {
    const settings = { ...config, cells: 1, cellSlots: 64, carryOver: 0, totalSteps: 6 }
    const load = { executionMs: () => 1000, microStepMs: 60, moveMs: 20, generating: 1 }
    const { history } = runFluid(settings, load).state
    expect(history.bursts).toHaveLength(2)
    for (const { workMs, tailMs } of history.bursts) {
      // Two steps of 4 groups of 2 micro-steps on one cell, the second full after the first; then publication.
      expect(tailMs).toBeGreaterThanOrEqual(480)
      expect(tailMs).toBeLessThan(500)
      expect(workMs).toBeGreaterThanOrEqual(960)
      expect(workMs).toBeLessThan(1000)
    }
    expect(history.completions.every(({ elapsedMs }) => elapsedMs >= 1000 && elapsedMs < 1050)).toBe(true)
  })
})
