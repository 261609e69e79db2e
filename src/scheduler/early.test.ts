import { describe, expect, test } from 'vitest'
import { longTailed, runFluid } from '../../test/support/fluid-world.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { executionId, groupId } from '../core/ids.ts'
import { advance } from './advance.ts'
import { beginEarly, MOST_KEPT } from './early.ts'
import { GUARDS } from './guards.ts'
import { checkInvariants } from './invariants.ts'
import { initialState } from './state.ts'
import { draftOf } from './tick.ts'
import type { Command, SchedulerEvent } from './messages.ts'
import type { ExecutionSlot, GroupSlot, SchedulerState } from './types.ts'

const config = withLeversOff({
  policy: 'async',
  cells: 3,
  cellSlots: 8,
  standaloneSlots: [],
  groupSize: 3,
  groupsPerStep: 2,
  stepsPerBurst: 1,
  carryOver: 0,
  totalSteps: 4,
  trainingCells: 2,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
  cellRestarts: 3,
  excludedGroupsLimit: 3,
  earlyForward: true,
})

/** Cells 0 and 1 are members of the open step; cell 2 runs two groups, of which nothing has ended. */
class Scene {
  state: SchedulerState = initialState(config)

  constructor() {
    const { state, step } = { state: this.state, step: { index: 0, attempt: 1 } }
    this.state = {
      ...state,
      phase: 'running',
      prefix: 2,
      dispatched: 6,
      started: 6,
      dispatches: 1,
      serial: 10,
      burst: { ...state.burst, id: 0, stepsLeft: 1 },
      groups: [this.#group('g0', 'abc'), this.#group('g1', 'xyz')],
      cells: state.cells.map((cell, i) => (i < 2 ? { ...cell, phase: 'training', joined: true } : cell)),
      openStep: { ...step, phase: 'open', groups: [], queue: [], tried: [] },
    }
  }

  #group(id: string, members: string): GroupSlot {
    return {
      groupId: groupId(id),
      dispatchVersion: 0,
      phase: 'running',
      readyOrder: undefined,
      trainedStep: undefined,
      dispatchedAtMs: 0,
      startedAtMs: 0,
      quorumMs: undefined,
      members: members.split('').map((m): ExecutionSlot => ({
        executionId: executionId(m),
        attempt: 0,
        phase: 'running',
        destination: { kind: 'cell', index: 2 },
        routeEpoch: 1,
        startedAtMs: 0,
        heldAtMs: undefined,
        cut: false,
      })),
    }
  }

  send(event: SchedulerEvent): readonly Command[] {
    const { state, commands } = advance(this.state, event, 0)
    const broken = checkInvariants(state, this.state)
    if (broken.length > 0) throw new Error(broken.join('; '))
    this.state = state
    return commands
  }

  scored(...ids: readonly string[]): Command[] {
    return ids.flatMap((id) => this.send({ kind: 'execution-scored', executionId: executionId(id) }))
  }

  /** The answer to the last hold or claim of a cell. */
  answer(cell: number, kind: 'gradient-held' | 'gradient-refused' | 'micro-step-done'): readonly Command[] {
    const { epoch = 0, early, claim } = this.state.cells[cell] ?? {}
    return this.send({ kind, cell, epoch, key: early?.key ?? claim?.key ?? '' })
  }

  /** g0, whose last member ends now, is cut into two common micro-steps and one for each of these. */
  complete(...early: readonly string[]): readonly Command[] {
    this.scored('c')
    return this.send({
      kind: 'micro-steps-built',
      groupId: groupId('g0'),
      step: 0,
      attempt: 1,
      count: 2 + early.length,
      early: early.map((id, i) => ({ index: 2 + i, executionId: executionId(id) })),
    })
  }
}

const brief = (commands: readonly Command[]): unknown[] =>
  commands.flatMap((c): unknown[][] => {
    if (c.kind === 'hold-gradient') return [[c.kind, c.cell, c.early.executionId]]
    if (c.kind === 'train' || c.kind === 'apply-held') return [[c.kind, c.cell, c.claim.index]]
    return c.kind === 'build-micro-steps' ? [[c.kind, c.groupId, c.held]] : []
  })

describe('a gradient before its group is complete', () => {
  test('is computed by idle members, kept, and added by its holder alone', () => {
    const scene = new Scene()
    expect(brief(scene.scored('a', 'b'))).toEqual([
      ['hold-gradient', 0, 'a'],
      ['hold-gradient', 1, 'b'],
    ])
    scene.answer(0, 'gradient-held')
    scene.answer(1, 'gradient-held')
    expect(brief(scene.scored('c'))).toEqual([['build-micro-steps', 'g0', ['a', 'b']]])
    const built = scene.complete('b', 'a')
    // Micro-step 2 is b's, which cell 1 keeps; the common ones come after.
    expect(brief(built)).toEqual([
      ['apply-held', 0, 3],
      ['apply-held', 1, 2],
    ])
    expect(brief(scene.answer(0, 'micro-step-done'))).toEqual([['train', 0, 0]])
    expect(brief(scene.answer(1, 'micro-step-done'))).toEqual([['train', 1, 1]])
    expect(scene.state.cells.map((cell) => cell.kept)).toEqual([[], [], []])
  })

  test('that is refused, or cannot be used, is computed as any other micro-step', () => {
    const scene = new Scene()
    scene.scored('a', 'b')
    scene.answer(0, 'gradient-held')
    // It is not tried again in this step.
    expect(brief(scene.answer(1, 'gradient-refused'))).toEqual([])
    expect(brief(scene.complete('a'))).toEqual([
      ['apply-held', 0, 2],
      ['train', 1, 0],
    ])
    expect(brief(scene.answer(0, 'gradient-refused'))).toEqual([['train', 0, 2]])
  })

  test('is gone with its holder', () => {
    const scene = new Scene()
    scene.scored('a', 'b')
    scene.answer(0, 'gradient-held')
    scene.answer(1, 'gradient-held')
    // Cell 0, which has nothing to do, computes what cell 1 kept.
    expect(brief(scene.send({ kind: 'cell-failed', cell: 1, epoch: 1 }))).toEqual([['hold-gradient', 0, 'b']])
    expect(brief(scene.complete('a'))).toEqual([])
    expect(brief(scene.answer(0, 'gradient-held'))).toEqual([['apply-held', 0, 2]])
    expect(scene.state.openStep?.queue.map((m) => m.index)).toEqual([0, 1])
  })

  test('that another member keeps waits for it', () => {
    const scene = new Scene()
    scene.scored('a')
    scene.answer(0, 'gradient-held')
    expect(brief(scene.scored('x', 'b'))).toEqual([
      ['hold-gradient', 0, 'x'],
      ['hold-gradient', 1, 'b'],
    ])
    scene.answer(1, 'gradient-refused')
    expect(brief(scene.complete('a'))).toEqual([['train', 1, 0]])
    expect(brief(scene.answer(1, 'micro-step-done'))).toEqual([['train', 1, 1]])
    // Cell 1 has nothing to do then: what is left is the holder's.
    expect(brief(scene.answer(1, 'micro-step-done'))).toEqual([])
    expect(scene.state.openStep?.queue.map((m) => m.index)).toEqual([2])
    expect(brief(scene.answer(0, 'gradient-held'))).toEqual([['apply-held', 0, 2]])
  })

  test('never comes before a micro-step, nor for a group that the step has no place for', () => {
    const scene = new Scene()
    scene.send({ kind: 'stop' })
    expect(scene.scored('a')).toEqual([])
    const other = new Scene()
    const group = { groupId: groupId('t'), microSteps: 1, early: [] }
    const open = { ...other.state.openStep, index: 0, attempt: 1, phase: 'open' as const, tried: [] }
    const cases = [
      { ...open, groups: [group], queue: [{ groupId: groupId('t'), index: 0 }] },
      { ...open, groups: [{ ...group, microSteps: undefined }], queue: [] },
      { ...open, groups: [group, { ...group, groupId: groupId('u') }], queue: [] },
    ]
    const groups = other.state.groups.map((g) => ({ ...g, members: g.members.map(scored) }))
    for (const openStep of cases) expect(begins({ ...other.state, groups, openStep })).toBe(false)
    const free = { ...other.state, groups, openStep: { ...open, groups: [group], queue: [] } }
    expect(begins(free)).toBe(true)
    const full = Array.from({ length: MOST_KEPT }, (_, i) => ({
      groupId: groupId('g'),
      executionId: executionId(`k${i}`),
      key: `${i}`,
    }))
    expect(begins({ ...free, cells: free.cells.map((cell) => ({ ...cell, kept: full })) })).toBe(false)
    expect(begins({ ...free, config: { ...config, earlyForward: false } })).toBe(false)
  })
})

const scored = (member: ExecutionSlot, index: number): ExecutionSlot =>
  index === 0 ? { ...member, phase: 'scored', destination: undefined } : member

function begins(state: SchedulerState): boolean {
  return beginEarly({ state: draftOf(state), commands: [], written: new Set(), guards: GUARDS })
}

const total = (all: ReturnType<typeof runFluid>[]): number => all.reduce((sum, run) => sum + run.totalMs, 0)

test('on a long tail, it shortens runs in which training is much of the time', () => {
  const settings = { ...config, policy: 'elastic', groupSize: 8, cells: 4, cellSlots: 16, totalSteps: 24 } as const
  const load = { microStepMs: 200, moveMs: 20, generating: 0.5, aloneFactor: 1.25 }
  const runs = (earlyForward: boolean): ReturnType<typeof runFluid>[] =>
    [1, 2, 3].map((seed) =>
      runFluid(
        {
          ...settings,
          earlyForward,
          groupsPerStep: 4,
          stepsPerBurst: 2,
          carryOver: 0.5,
          carryOverMin: 0.5,
          carryOverMax: 0.5,
        },
        { ...load, executionMs: longTailed(seed, 1000, 0.6, 6000) },
      ),
    )
  const [off, on] = [runs(false), runs(true)]
  expect(off.every((run) => run.early === 0)).toBe(true)
  expect(on.every((run) => run.applied > 0)).toBe(true)
  expect(total(on)).toBeLessThan(total(off))
})
