import { describe, expect, test } from 'vitest'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { TimedSchedule } from '../../test/support/timed-schedule.ts'
import { effectiveSlots } from './over-commit.ts'
import { slotsUsed } from './place.ts'
import type { SchedulerConfig } from './types.ts'
import { waterLevel } from './waterlevel.ts'

/** 16 executions for 8 slots. */
const config: SchedulerConfig = {
  ...withLeversOff({
    policy: 'elastic',
    cells: 2,
    cellSlots: 4,
    standaloneSlots: [],
    groupSize: 4,
    groupsPerStep: 4,
    stepsPerBurst: 1,
    carryOver: 0,
    totalSteps: 2,
    trainingCells: 1,
    demandAware: false,
    placement: 'latest',
    executionAttempts: 1,
    cellRestarts: 3,
    excludedGroupsLimit: 3,
  }),
  overCommit: 1.5,
}

/** The load is seen so often. */
function see(schedule: TimedSchedule, share: number, times: number): void {
  for (let i = 0; i < times; i++) schedule.at(0, { kind: 'load-seen', share })
}

function used(schedule: TimedSchedule): number[] {
  return [0, 1].map((index) => slotsUsed(schedule.state, { kind: 'cell', index }))
}

describe('while executions wait', () => {
  test('idle engines are given more in small steps, evenly, and never more than allowed', () => {
    const schedule = TimedSchedule.begun(config)
    expect(used(schedule)).toEqual([4, 4])
    see(schedule, 0.3, 3)
    expect(schedule.state.load.factor).toBe(1)
    see(schedule, 0.3, 1)
    expect(schedule.state.load.factor).toBe(1.125)
    see(schedule, 0.3, 4)
    expect(used(schedule)).toEqual([5, 5])
    see(schedule, 0.3, 40)
    expect(schedule.state.load.factor).toBe(1.5)
    expect(used(schedule)).toEqual([6, 6])
  })

  test('busy engines get nothing, and those that became busy get less from then on', () => {
    const schedule = TimedSchedule.begun(config)
    see(schedule, 0.95, 20)
    expect(schedule.state.load.factor).toBe(1)
    see(schedule, 0.3, 40)
    expect(used(schedule)).toEqual([6, 6])
    see(schedule, 1.4, 40)
    expect(schedule.state.load.factor).toBe(1)
    // Nobody is sent away; who ends is not followed until there is a slot again.
    expect(used(schedule)).toEqual([6, 6])
    schedule.end(1, '0a', '0b')
    expect(used(schedule)).toEqual([6, 4])
    schedule.end(1, '0c')
    expect(used(schedule)).toEqual([6, 4])
  })

  test('a load between the two changes nothing', () => {
    const schedule = TimedSchedule.begun(config)
    see(schedule, 0.8, 40)
    expect(schedule.state.load.factor).toBe(1)
  })

  test('nothing happens when it is off, and what is no share is no report', () => {
    const off = TimedSchedule.begun({ ...config, overCommit: 1 })
    see(off, 0, 40)
    expect(used(off)).toEqual([4, 4])
    const schedule = TimedSchedule.begun(config)
    for (const share of [Number.NaN, -1, Number.POSITIVE_INFINITY]) see(schedule, share, 8)
    expect(schedule.state.load).toEqual({ busyShare: undefined, reports: 0, factor: 1 })
  })
})

test('engines that are idle for want of executions do not count as idle', () => {
  const schedule = TimedSchedule.begun({ ...config, cellSlots: 8 })
  expect(waterLevel(schedule.state)).toBe(16)
  see(schedule, 0.1, 40)
  expect(schedule.state.load.factor).toBe(1)
})

test('a move counts slots alone: the core leaves when the slots that stay hold everything', () => {
  const schedule = TimedSchedule.begun(config)
  see(schedule, 0.3, 40)
  schedule.end(1, '0a', '0b', '0c', '0d', '1a', '1b', '1c', '1d', '2a', '2b', '2c')
  expect(waterLevel(schedule.state)).toBe(5)
  // 6 would be admitted by the other cell, and still the core stays.
  expect(schedule.state.load.factor).toBe(1.5)
  expect(schedule.state.transfer).toBeUndefined()
  schedule.end(2, '2d')
  expect(schedule.state.transfer?.cell).toBe(0)
  expect(used(schedule)).toEqual([0, 4])
})

test('slots with a factor are whole', () => {
  expect(effectiveSlots(4, 1.125)).toBe(4)
  expect(effectiveSlots(10, 1.1)).toBe(11)
})
