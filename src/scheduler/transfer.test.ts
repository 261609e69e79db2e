import { describe, expect, test } from 'vitest'
import { configOf } from '../../test/support/scheduler-histories.ts'
import { executionId, groupId } from '../core/ids.ts'
import { advance } from './advance.ts'
import { initialState } from './state.ts'
import type { Command, SchedulerEvent } from './messages.ts'
import type { SchedulerConfig, SchedulerState } from './types.ts'

/** Three cells of two slots, three groups of two: full at the start; phi 0.5. */
const BASE = configOf('elastic', {
  cells: 3,
  cellSlots: 2,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 1,
  carryOver: 0.5,
  carryOverBelow: 0,
  carryOverAbove: 0,
  stragglerQuorum: 1,
  stragglerGrace: 0,
  earlyForward: false,
  overCommit: 1,
  kvHandover: true,
  totalSteps: 3,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
})

class Run {
  state: SchedulerState
  commands: readonly Command[] = []

  constructor(config: Partial<SchedulerConfig> = {}) {
    this.state = initialState({ ...BASE, ...config })
    this.send({ kind: 'start' })
    const groups = Array.from({ length: this.state.creating }, (_, i) => ({
      groupId: groupId(`g${i}`),
      executionIds: ['a', 'b'].map((m) => executionId(`e${i}${m}`)),
    }))
    this.send({ kind: 'groups-created', groups })
  }

  send(...events: readonly SchedulerEvent[]): string[] {
    this.commands = events.flatMap((event) => {
      const { state, commands } = advance(this.state, event, 0)
      this.state = state
      return commands
    })
    return this.commands.map((c) => c.kind)
  }

  score(...ids: readonly string[]): string[] {
    return this.send(...ids.map((id) => ({ kind: 'execution-scored' as const, executionId: executionId(id) })))
  }

  one<K extends Command['kind']>(kind: K): Extract<Command, { readonly kind: K }> {
    const [found, ...more] = this.commands.filter((c): c is Extract<Command, { readonly kind: K }> => c.kind === kind)
    if (found === undefined || more.length > 0) throw new Error(`not one ${kind}`)
    return found
  }

  /** Where every unfinished execution is: `c2`, `s0`, or `-` without a place. */
  places(): string[] {
    return this.state.groups
      .flatMap((g) => g.members)
      .filter((m) => ['queued', 'running', 'held'].includes(m.phase))
      .map(({ destination: d }) => (d === undefined ? '-' : `${d.kind.charAt(0)}${d.index}`))
  }
}

/** e0 is on cell 2, e1 on cell 1, e2 on cell 0, which leaves when two of the others are over. */
function leaving(): { readonly run: Run; readonly id: number } {
  const run = new Run()
  expect(run.places()).toEqual(['c2', 'c2', 'c1', 'c1', 'c0', 'c0'])
  expect(run.score('e0a', 'e1a')).toEqual(['set-routes', 'hand-over'])
  const { transferId, moves } = run.one('hand-over')
  expect(moves).toEqual([
    { executionId: 'e2a', destination: { kind: 'cell', index: 2 } },
    { executionId: 'e2b', destination: { kind: 'cell', index: 1 } },
  ])
  return { run, id: transferId }
}

describe('a move', () => {
  test('publishes routes, hands over, cancels, enters, in this order', () => {
    const { run, id } = leaving()
    expect(run.places()).toEqual(['c2', 'c1', 'c2', 'c1'])
    expect(run.send({ kind: 'handed-over', transferId: id })).toEqual(['cancel-in-flight'])
    expect(run.one('cancel-in-flight').moved).toBe(2)
    expect(run.send({ kind: 'cancelled', transferId: id })).toEqual(['enter-training'])
    run.send({ kind: 'entered-training', cell: 0, epoch: 2 })
    expect(run.state.prefix).toBe(1)
  })

  test('has nothing to hand over when nothing is cached there, or when it is switched off', () => {
    expect(new Run({ kvHandover: false }).score('e0a', 'e1a')).toContain('cancel-in-flight')
    expect(new Run().score('e2a', 'e2b')).toEqual(['build-micro-steps', 'cancel-in-flight'])
  })

  test('ignores reports of another move, and those that come too early or twice', () => {
    const { run, id } = leaving()
    expect(run.send({ kind: 'handed-over', transferId: id + 1 }, { kind: 'cancelled', transferId: id })).toEqual([])
    run.send({ kind: 'handed-over', transferId: id })
    expect(run.send({ kind: 'handed-over', transferId: id })).toEqual([])
  })

  test('is undone when a destination dies and its executions find no other room: the rest stay where they are', () => {
    const { run, id } = leaving()
    run.send({ kind: 'cell-failed', cell: 2, epoch: 1 })
    expect(run.state.transfer).toBeUndefined()
    expect(run.state.cells[0]).toMatchObject({ phase: 'rollout', epoch: 3 })
    expect(run.places()).toEqual(['c0', 'c1', 'c0', 'c1'])
    expect(run.send({ kind: 'handed-over', transferId: id })).toEqual([])
  })

  test('is undone once its cell is quiet when that happens while it cancels', () => {
    const { run, id } = leaving()
    run.send({ kind: 'handed-over', transferId: id }, { kind: 'cell-failed', cell: 2, epoch: 1 })
    expect(run.places()).toEqual(['-', 'c1', '-', 'c1'])
    expect(run.send({ kind: 'cancelled', transferId: id })).toEqual(['set-routes'])
    expect(run.places()).toEqual(['c0', 'c1', 'c0', 'c1'])
  })

  test('goes on when a destination dies and there is other room', () => {
    const { run, id } = leaving()
    run.score('e1b')
    run.score('e2b')
    run.send({ kind: 'cell-failed', cell: 2, epoch: 1 })
    expect(run.places()).toEqual(['c1', 'c1'])
    expect(run.send({ kind: 'handed-over', transferId: id })).toEqual(['cancel-in-flight'])
  })

  test('ends with its cell, whose executions are safe', () => {
    const { run, id } = leaving()
    expect(run.send({ kind: 'cell-failed', cell: 0, epoch: 2 })).toEqual(['restart-cell'])
    expect(run.places()).toEqual(['c2', 'c1', 'c2', 'c1'])
    expect(run.send({ kind: 'handed-over', transferId: id })).toEqual([])
  })

  test('is undone by a stop, at once or when its cell is quiet', () => {
    const early = leaving()
    expect(early.run.send({ kind: 'stop' })).toEqual([])
    expect(early.run.state.cells[0]?.phase).toBe('rollout')
    const late = leaving()
    late.run.send({ kind: 'handed-over', transferId: late.id }, { kind: 'stop' })
    expect(late.run.send({ kind: 'cancelled', transferId: late.id })).toEqual([])
    expect(late.run.state.cells[0]?.phase).toBe('rollout')
  })
})

describe('an engine beside the cells', () => {
  const beside = { cells: 1, standaloneSlots: [4], cellSlots: 2 }

  test('is preferred, hands its executions on when it fails, and serves again with the published version only', () => {
    const run = new Run(beside)
    expect(run.places()).toEqual(['s0', 's0', 's0', 's0', 'c0', 'c0'])
    run.score('e2a')
    run.send({ kind: 'standalone-failed', engine: 0, epoch: 1 })
    expect(run.one('recover-standalone')).toMatchObject({ engine: 0, epoch: 2, version: 0 })
    expect(run.places()).toEqual(['c0', '-', '-', '-', 'c0'])
    expect(run.send({ kind: 'standalone-failed', engine: 0, epoch: 1 })).toEqual([])
    run.send({ kind: 'standalone-recovered', engine: 0, epoch: 2, version: 7 })
    expect(run.one('recover-standalone')).toMatchObject({ epoch: 3, version: 0 })
    expect(run.send({ kind: 'standalone-recovered', engine: 0, epoch: 2, version: 0 })).toEqual([])
    expect(run.send({ kind: 'standalone-recovered', engine: 0, epoch: 3, version: 0 })).toEqual(['set-routes'])
    expect(run.places()).toEqual(['c0', 's0', 's0', 's0', 'c0'])
  })

  test('that never returns does not stop a run whose cells all train: they come back to roll out', () => {
    const run = new Run({ ...beside, standaloneSlots: [6] })
    expect(run.places()).toEqual(['s0', 's0', 's0', 's0', 's0', 's0'])
    run.send(
      { kind: 'cancelled', transferId: run.state.transfer?.id ?? 0 },
      { kind: 'entered-training', cell: 0, epoch: 2 },
    )
    expect(run.state.cells[0]?.phase).toBe('training')
    run.send({ kind: 'standalone-failed', engine: 0, epoch: 1 })
    expect(run.one('publish')).toMatchObject({ cell: 0, enterRollout: true })
    run.send({ kind: 'published', cell: 0, epoch: run.state.cells[0]?.epoch ?? 0, version: 0 })
    expect(run.places()).toEqual(['c0', 'c0', '-', '-', '-', '-'])
  })

  test('takes every version: the next burst waits for it, but not for one that failed', () => {
    const run = new Run({ ...beside, standaloneSlots: [6], groupsPerStep: 1, carryOver: 0, carryOverMin: 0 })
    run.score('e0a', 'e0b')
    const send = (event: SchedulerEvent): string[] => run.send(event)
    send({ kind: 'cancelled', transferId: run.state.transfer?.id ?? 0 })
    send({ kind: 'entered-training', cell: 0, epoch: 2 })
    send({ kind: 'joined', cell: 0, epoch: 2, step: 0 })
    const attempt = run.state.openStep?.attempt ?? 0
    expect(send({ kind: 'micro-steps-built', groupId: groupId('g0'), step: 0, attempt, count: 0 })).toEqual([
      'optimize',
    ])
    send({ kind: 'optimized', epoch: 2, step: 0 })
    expect(send({ kind: 'checkpointed', step: 1 })).toEqual(['publish-standalone'])
    expect(run.state.phase).toBe('publishing')
    const failed = advance(run.state, { kind: 'standalone-failed', engine: 0, epoch: 1 }, 0)
    expect(failed.state.standalone[0]).toMatchObject({ phase: 'failed', publishing: false })
    expect(send({ kind: 'standalone-published', engine: 0, epoch: 1, version: 0 })).toEqual([])
    const next = send({ kind: 'standalone-published', engine: 0, epoch: 1, version: 1 })
    expect(next).toContain('publish')
    expect(failed.commands.map((c) => c.kind)).toEqual(['recover-standalone', ...next])
    expect(run.state.standalone[0]?.policyVersion).toBe(1)
  })
})
