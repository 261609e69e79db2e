import { describe, expect, test } from 'vitest'
import { executionId, groupId } from '../core/ids.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { cutsOf, TimedSchedule, wakesOf } from '../../test/support/timed-schedule.ts'
import { quorumOf, resumedState } from './state.ts'
import type { ResumedGroup } from './state.ts'
import type { SchedulerConfig } from './types.ts'

/** One group of 4: 3 make the quorum, and a member gets half as long again as they took. */
const config: SchedulerConfig = {
  ...withLeversOff({
    policy: 'elastic',
    cells: 1,
    cellSlots: 4,
    standaloneSlots: [],
    groupSize: 4,
    groupsPerStep: 1,
    stepsPerBurst: 1,
    carryOver: 0,
    totalSteps: 2,
    trainingCells: 1,
    demandAware: false,
    placement: 'latest',
    executionAttempts: 3,
    cellRestarts: 3,
    excludedGroupsLimit: 3,
  }),
  stragglerQuorum: 0.75,
  stragglerGrace: 0.5,
}

/** The quorum is there at 300, so the last member is due at 450. */
function waiting(change: Partial<SchedulerConfig> = {}, throughJson = false): TimedSchedule {
  const schedule = TimedSchedule.begun({ ...config, ...change }, throughJson)
  schedule.end(100, '0a')
  schedule.end(200, '0b')
  return schedule
}

describe('the last member of a group', () => {
  test('is cut when it has run half as long again as the quorum took, once', () => {
    const schedule = waiting()
    expect(wakesOf(schedule.end(300, '0c'))).toEqual([450])
    expect(schedule.tick(449)).toEqual([{ kind: 'wake', atMs: 450 }])
    expect(cutsOf(schedule.tick(450))).toEqual(['0d'])
    expect(schedule.member('0d')).toMatchObject({ phase: 'running', cut: true })
    expect(schedule.tick(451)).toEqual([])
    expect(schedule.state.cutExecutions).toBe(1)
    schedule.end(460, '0d')
    expect(schedule.state.groups[0]?.phase).not.toBe('running')
    expect(schedule.state).toMatchObject({ dispatched: 4, started: 4, terminated: 4 })
  })

  test('is cut by any event once it is due: a late wake loses nothing but time', () => {
    const schedule = waiting()
    schedule.end(300, '0c')
    expect(cutsOf(schedule.at(700, { kind: 'load-seen', share: 0 }))).toEqual(['0d'])
  })

  test('that ends before its time is left alone', () => {
    const schedule = waiting()
    schedule.end(300, '0c')
    schedule.end(440, '0d')
    expect(cutsOf(schedule.tick(450))).toEqual([])
    expect(schedule.state.cutExecutions).toBe(0)
  })

  test('is waited for without a quorum, and when nothing is to be cut', () => {
    expect(cutsOf(waiting().tick(10_000))).toEqual([])
    const never = waiting({ stragglerQuorum: 1 })
    expect(never.end(300, '0c')).toEqual([])
    expect(never.tick(10_000)).toEqual([])
  })

  test('that is excluded counts as one that ended', () => {
    const schedule = waiting()
    const commands = schedule.at(300, { kind: 'execution-excluded', executionId: executionId('0c') })
    expect(wakesOf(commands)).toEqual([450])
  })

  test('is cut at the same time when every state went through JSON', () => {
    const schedule = waiting({}, true)
    schedule.end(300, '0c')
    expect(cutsOf(schedule.tick(449))).toEqual([])
    expect(cutsOf(schedule.tick(450))).toEqual(['0d'])
    expect(cutsOf(schedule.tick(451))).toEqual([])
  })
})

describe('a member has its own time', () => {
  test('when it was queued: nothing is cut that has not begun', () => {
    const schedule = TimedSchedule.begun({ ...config, cellSlots: 3 })
    expect(schedule.member('0d').phase).toBe('queued')
    schedule.end(100, '0a')
    expect(schedule.member('0d')).toMatchObject({ phase: 'running', startedAtMs: 100 })
    schedule.end(200, '0b')
    expect(wakesOf(schedule.end(300, '0c'))).toEqual([550])
  })

  test('when it is a second attempt, and while it waits for one it is not cut', () => {
    const schedule = waiting()
    schedule.end(300, '0c')
    schedule.at(400, { kind: 'execution-failed', executionId: executionId('0d') })
    expect(cutsOf(schedule.tick(450))).toEqual([])
    const id = { executionId: executionId('0d'), nextId: executionId('0d2') }
    expect(wakesOf(schedule.at(500, { kind: 'attempt-created', ...id }))).toEqual([950])
    expect(cutsOf(schedule.tick(950))).toEqual(['0d2'])
  })

  test('which stands still while it is held', () => {
    const schedule = waiting()
    schedule.end(300, '0c')
    // One cell, and it is gone: the cell moved for nothing yet, since one member is out.
    schedule.at(310, { kind: 'cell-failed', cell: 0, epoch: schedule.state.cells[0]?.epoch ?? 0 })
    expect(schedule.member('0d')).toMatchObject({ phase: 'held', heldAtMs: 310 })
    expect(cutsOf(schedule.tick(450))).toEqual([])
    const who = { cell: 0, epoch: schedule.state.cells[0]?.epoch ?? 0 }
    schedule.at(500, { kind: 'cell-restarted', ...who })
    const commands = schedule.at(510, { kind: 'cell-restored', ...who, version: 0 })
    expect(wakesOf(commands)).toEqual([650])
    expect(schedule.member('0d').startedAtMs).toBe(200)
  })
})

test('a cut execution that fails is excluded: its time is over', () => {
  const schedule = waiting()
  schedule.end(300, '0c')
  schedule.tick(450)
  expect(schedule.at(460, { kind: 'execution-failed', executionId: executionId('0d') })).not.toContainEqual({
    kind: 'new-attempt',
    executionId: executionId('0d'),
  })
  expect(schedule.member('0d').phase).toBe('excluded')
})

function resumed(id: string, phase: 'scored' | 'queued'): ResumedGroup['members'][number] {
  return { executionId: executionId(id), attempt: 0, phase }
}

test('a group that is resumed with its quorum is left alone: how long that took is not known', () => {
  const members = [resumed('a', 'scored'), resumed('b', 'scored'), resumed('c', 'scored'), resumed('d', 'queued')]
  const groups = [{ groupId: groupId('g'), dispatchVersion: 0, members }]
  const schedule = new TimedSchedule(resumedState(config, { step: 0, bursts: 1, groups }))
  schedule.at(0, { kind: 'start' })
  expect(schedule.member('d').phase).toBe('running')
  expect(schedule.tick(100_000)).toEqual([])
})

test('a quorum is a whole number of members', () => {
  expect(quorumOf({ stragglerQuorum: 0.7, groupSize: 10 })).toBe(7)
  expect(quorumOf({ stragglerQuorum: 0.875, groupSize: 8 })).toBe(7)
  expect(quorumOf({ stragglerQuorum: 0.75, groupSize: 2 })).toBe(2)
})
