/** @file mu, phi, B, N, Q_b, R3 and staleness, from their definitions. */
import { describe, expect, test } from 'vitest'
import { groupId } from '../core/ids.ts'
import { runFluid } from '../../test/support/fluid-world.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { mayAssign, stalenessBound, stalenessOf } from './staleness.ts'
import { dispatchDepth, initialState } from './state.ts'
import type { GroupPhase, GroupSlot, SchedulerConfig, SchedulerState } from './types.ts'

const config = withLeversOff({
  policy: 'elastic',
  cells: 3,
  cellSlots: 16,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 2,
  carryOver: 1,
  totalSteps: 12,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
  cellRestarts: 3,
  excludedGroupsLimit: 3,
})

function withPhi(carryOver: number, change: Partial<SchedulerConfig> = {}): SchedulerConfig {
  return { ...config, ...change, carryOver, carryOverMin: carryOver, carryOverMax: carryOver }
}

test.each([
  [0, 2, 2, 4],
  [1, 2, 2, 6],
  [0.25, 1, 8, 10],
  [0.5, 4, 32, 144],
  [1.34, 1, 3, 7],
])('Q_b is round((phi + mu) B): phi %d, mu %d, B %d', (phi, mu, groupsPerStep, depth) => {
  expect(dispatchDepth(initialState(withPhi(phi, { stepsPerBurst: mu, groupsPerStep })))).toBe(depth)
})

test('Q_b follows the phi of the state, within the bounds of the configuration', () => {
  expect(dispatchDepth({ config, carryOver: 0.5 })).toBe(5)
})

test('staleness is the steps between dispatch and the weights a group is trained on', () => {
  const groups = [4, 4, 6, 7].map((dispatchVersion) => ({ dispatchVersion }))
  expect(stalenessOf(7, groups)).toEqual({ mean: 1.75, max: 3 })
  expect(stalenessOf(7, [])).toEqual({ mean: 0, max: 0 })
})

test.each([
  [1, 0, 0],
  [4, 0, 3],
  [4, 0.25, 7],
  [4, 4, 7],
  [4, 5, 11],
])('the hard bound is mu - 1 + mu ceil(phi / mu): mu %d, phi %d', (stepsPerBurst, carryOverMax, bound) => {
  expect(stalenessBound({ stepsPerBurst, carryOverMax })).toBe(bound)
})

function group(id: string, dispatchVersion: number, phase: GroupPhase): GroupSlot {
  return {
    groupId: groupId(id),
    dispatchVersion,
    phase,
    readyOrder: phase === 'ready' ? 1 : undefined,
    trainedStep: undefined,
    dispatchedAtMs: undefined,
    startedAtMs: undefined,
    quorumMs: undefined,
    members: [],
  }
}

/** A burst that began at step 2, with `taken` groups in its first step. Of v = 0 two are still out. */
function secondBurst(taken: number, old: GroupPhase): SchedulerState {
  const inStep = Array.from({ length: taken }, (_, i) => ({ groupId: groupId(`t${i}`), microSteps: 1, early: [] }))
  return {
    ...initialState(config),
    step: 2,
    policyVersion: 2,
    groups: [group('old1', 0, old), group('old2', 0, old), group('new', 2, 'ready')],
    openStep: { index: 2, attempt: 1, phase: 'open', groups: inStep, queue: [], tried: [] },
  }
}

function mayTakeNew(state: SchedulerState): boolean {
  return mayAssign(state, state.groups[2] as GroupSlot)
}

describe('R3', () => {
  test('lets a new group go first while what is left of the burst holds every old one', () => {
    expect(mayTakeNew(secondBurst(0, 'running'))).toBe(true)
    expect(mayTakeNew(secondBurst(1, 'running'))).toBe(true)
  })

  test('keeps the last places of the burst for groups of an earlier one, whether they are ready or not', () => {
    expect(mayTakeNew(secondBurst(2, 'running'))).toBe(false)
    expect(mayTakeNew(secondBurst(2, 'ready'))).toBe(false)
  })

  test('always lets the old ones themselves', () => {
    const state = secondBurst(2, 'ready')
    expect(mayAssign(state, state.groups[0] as GroupSlot)).toBe(true)
  })
})

describe('a run', () => {
  const load = { executionMs: () => 100, microStepMs: 10, moveMs: 5, generating: 1 }

  test('without phi trains at 0 to mu - 1 steps, and publishes every mu steps', () => {
    const { staleness, log } = runFluid(withPhi(0), load)
    expect(staleness.map((s) => s.mean)).toEqual([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    expect(staleness.map((s) => s.max)).toEqual([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    const versions = log.flatMap((c) => (c.kind === 'create-groups' ? [[c.count, c.dispatchVersion]] : []))
    expect(versions).toEqual([0, 2, 4, 6, 8, 10].map((version) => [4, version]))
  })

  test('with phi dispatches Q_b at first, then what was consumed, and at last nothing that no step would take', () => {
    const { log } = runFluid(withPhi(1), load)
    const counts = log.flatMap((c) => (c.kind === 'create-groups' ? [c.count] : []))
    expect(counts).toEqual([6, 4, 4, 4, 4, 2])
    expect(log.filter((c) => c.kind === 'start-execution')).toHaveLength(12 * 2 * 2)
  })
})
