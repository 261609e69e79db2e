import { describe, expect, test } from 'vitest'
import { groupId } from '../core/ids.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { hasBacklog } from './demand.ts'
import { initialState } from './state.ts'
import type { CellPhase, CellSlot, GroupSlot, SchedulerState, StepSlot } from './types.ts'

const base = initialState(
  withLeversOff({
    policy: 'elastic',
    cells: 3,
    cellSlots: 4,
    standaloneSlots: [],
    groupSize: 2,
    groupsPerStep: 2,
    stepsPerBurst: 1,
    carryOver: 1,
    totalSteps: 4,
    trainingCells: 1,
    demandAware: true,
    placement: 'latest',
    executionAttempts: 1,
    cellRestarts: 3,
    excludedGroupsLimit: 3,
  }),
)

interface Scene {
  /** Phase of each cell; a `*` has something to compute. */
  readonly cells: readonly (CellPhase | 'training*')[]
  readonly queued?: number
  /** Groups of the step, the last of them not built. */
  readonly built?: number
  readonly building?: number
  readonly ready?: number
}

function scene({ cells, queued = 0, built = 0, building = 0, ready = 0 }: Scene): SchedulerState {
  const slot = (phase: Scene['cells'][number], index: number): CellSlot => ({
    ...(base.cells[index] as CellSlot),
    phase: phase === 'training*' ? 'training' : phase,
    claim: phase === 'training*' ? { groupId: groupId('g'), index: 9, key: `${index}` } : undefined,
  })
  const groups: StepSlot['groups'] = [
    ...Array.from({ length: built }, (_, i) => ({ groupId: groupId(`b${i}`), microSteps: 2, early: [] })),
    ...Array.from({ length: building }, (_, i) => ({ groupId: groupId(`u${i}`), microSteps: undefined, early: [] })),
  ]
  const queue = Array.from({ length: queued }, (_, index) => ({ groupId: groupId('b0'), index }))
  const waiting = Array.from({ length: ready }, (_, i): GroupSlot => ({
    groupId: groupId(`w${i}`),
    dispatchVersion: 0,
    phase: 'ready',
    readyOrder: i,
    trainedStep: undefined,
    dispatchedAtMs: undefined,
    startedAtMs: undefined,
    quorumMs: undefined,
    members: [],
  }))
  const prefix = cells.filter((c) => c !== 'rollout').length
  return {
    ...base,
    prefix,
    burst: { ...base.burst, stepsLeft: 1 },
    cells: cells.map((c, index) => slot(c, index)),
    openStep: { index: 0, attempt: 1, phase: 'open', groups, queue, tried: [] },
    groups: waiting,
  }
}

describe('a satellite is wanted', () => {
  test('for a micro-step nobody is free to claim', () => {
    expect(hasBacklog(scene({ cells: ['training*', 'rollout', 'rollout'], built: 1, queued: 1 }))).toBe(true)
  })

  test('for groups that are being cut, each at least one micro-step', () => {
    expect(hasBacklog(scene({ cells: ['training*', 'rollout', 'rollout'], building: 1 }))).toBe(true)
    expect(hasBacklog(scene({ cells: ['training', 'rollout', 'rollout'], building: 2 }))).toBe(true)
  })

  test('for ready groups this burst still takes', () => {
    expect(hasBacklog(scene({ cells: ['training*', 'rollout', 'rollout'], ready: 1 }))).toBe(true)
  })
})

describe('a satellite is not wanted', () => {
  test('when members that are there, or entering, will take everything', () => {
    expect(hasBacklog(scene({ cells: ['training', 'rollout', 'rollout'], building: 1 }))).toBe(false)
    expect(hasBacklog(scene({ cells: ['training*', 'training', 'rollout'], built: 1, queued: 1 }))).toBe(false)
    expect(hasBacklog(scene({ cells: ['training*', 'entering', 'rollout'], built: 1, queued: 1 }))).toBe(false)
  })

  test('when nothing waits, and for groups of the next burst', () => {
    expect(hasBacklog(scene({ cells: ['training*', 'rollout', 'rollout'], built: 1 }))).toBe(false)
    expect(hasBacklog(scene({ cells: ['training*', 'rollout', 'rollout'], built: 2, ready: 3 }))).toBe(false)
    expect(hasBacklog({ ...scene({ cells: ['training', 'rollout', 'rollout'] }), openStep: undefined })).toBe(false)
  })
})
