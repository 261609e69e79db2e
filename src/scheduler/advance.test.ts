import { describe, expect, test } from 'vitest'
import { hasCode } from '../core/errors.ts'
import { executionId, groupId } from '../core/ids.ts'
import { advance } from './advance.ts'
import { dispatchDepth, initialState, resumedState } from './state.ts'
import { configWarnings } from './state.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { TestWorld } from '../../test/support/scheduler-world.ts'
import type { Command, SchedulerEvent } from './messages.ts'
import type { SchedulerConfig, SchedulerState } from './types.ts'

const config = withLeversOff({
  policy: 'elastic',
  cells: 2,
  cellSlots: 4,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 1,
  carryOver: 1,
  totalSteps: 3,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
  cellRestarts: 3,
  excludedGroupsLimit: 3,
})

/** The configuration with a fixed phi and other changes. */
function withPhi(carryOver: number, change: Partial<SchedulerConfig>): SchedulerConfig {
  return { ...config, ...change, carryOver, carryOverMin: carryOver, carryOverMax: carryOver }
}

/** Feeds events by hand and keeps the commands. */
class Bench {
  state: SchedulerState
  commands: readonly Command[] = []

  constructor(state: SchedulerState) {
    this.state = state
  }

  send(...events: readonly SchedulerEvent[]): Command['kind'][] {
    const all: Command[] = []
    for (const event of events) {
      const { state, commands } = advance(this.state, event, 0)
      this.state = state
      all.push(...commands)
    }
    this.commands = all
    return all.map((c) => c.kind)
  }

  find<K extends Command['kind']>(kind: K): Extract<Command, { readonly kind: K }> {
    const found = this.commands.find((c): c is Extract<Command, { readonly kind: K }> => c.kind === kind)
    if (found === undefined) throw new Error(`no ${kind}`)
    return found
  }

  /** Starts, creates the groups asked for: g0 holds e0a, e0b and so on. */
  begin(): void {
    this.send({ kind: 'start' })
    const { count } = this.find('create-groups')
    this.send({ kind: 'groups-created', groups: Array.from({ length: count }, (_, i) => created(i)) })
  }

  score(...ids: readonly string[]): Command['kind'][] {
    return this.send(...ids.map((id) => ({ kind: 'execution-scored' as const, executionId: executionId(id) })))
  }
}

function created(i: number): { groupId: ReturnType<typeof groupId>; executionIds: ReturnType<typeof executionId>[] } {
  return { groupId: groupId(`g${i}`), executionIds: [executionId(`e${i}a`), executionId(`e${i}b`)] }
}

describe('a boundary', () => {
  test('dispatches (phi + mu) B groups, all on the cell that leaves last first', () => {
    const bench = new Bench(initialState(config))
    bench.begin()
    expect(dispatchDepth(bench.state)).toBe(4)
    expect(bench.commands.filter((c) => c.kind === 'start-execution')).toHaveLength(8)
    const routes = bench.find('set-routes').routes
    expect(routes.map((r) => r.destination?.index)).toEqual([1, 1, 1, 1, 0, 0, 0, 0])
  })

  test('spreads executions evenly when told to', () => {
    const bench = new Bench(initialState({ ...config, placement: 'balanced' }))
    bench.begin()
    expect(bench.find('set-routes').routes.map((r) => r.destination?.index)).toEqual([1, 0, 1, 0, 1, 0, 1, 0])
  })

  test('never dispatches more groups than the remaining steps consume', () => {
    const bench = new Bench(initialState({ ...config, totalSteps: 1 }))
    bench.send({ kind: 'start' })
    expect(bench.find('create-groups').count).toBe(2)
  })

  test('takes a real phi', () => {
    expect(dispatchDepth(initialState(withPhi(0.25, { groupsPerStep: 8 })))).toBe(10)
  })
})

describe('the water level', () => {
  test('lets the core go exactly when the other cell can hold everything unfinished', () => {
    const bench = new Bench(initialState(config))
    bench.begin()
    expect(bench.score('e0a', 'e0b', 'e1a')).not.toContain('cancel-in-flight')
    expect(bench.score('e2a')).toContain('cancel-in-flight')
    expect(bench.state.transfer?.cell).toBe(0)
    expect(bench.find('cancel-in-flight').moved).toBe(3)
    const moved = bench.find('set-routes').routes
    expect(moved.every((r) => r.destination?.index === 1 && r.routeEpoch === 2)).toBe(true)
    expect(bench.state.groups.flatMap((g) => g.members).filter((m) => m.destination?.index === 0)).toEqual([])
  })

  test('does nothing under colocate while one execution is unfinished', () => {
    const bench = new Bench(initialState(withPhi(0, { policy: 'colocate' })))
    bench.begin()
    expect(bench.score('e0a', 'e0b', 'e1a')).not.toContain('cancel-in-flight')
    expect(bench.score('e1b')).toContain('cancel-in-flight')
  })

  test('is not asked under async: the training cells leave at once and never get an execution', () => {
    const bench = new Bench(initialState({ ...config, policy: 'async' }))
    bench.begin()
    expect(bench.state.transfer?.cell).toBe(0)
    expect(bench.find('set-routes').routes.every((r) => r.destination?.index === 1)).toBe(true)
  })
})

describe('a group', () => {
  test('with fewer than two scores is replaced within the burst when nothing else can fill it', () => {
    const bench = new Bench(initialState(withPhi(0, {})))
    bench.begin()
    bench.send({ kind: 'execution-excluded', executionId: executionId('e0a') })
    bench.score('e0b')
    expect(bench.find('create-groups')).toMatchObject({ count: 1, burst: 0 })
  })

  test('is left to the next boundary when enough others are out', () => {
    const bench = new Bench(initialState(config))
    bench.begin()
    bench.send({ kind: 'execution-excluded', executionId: executionId('e0a') })
    expect(bench.score('e0b')).not.toContain('create-groups')
  })

  test('ends the run when it is one too many in a row without scores', () => {
    const bench = new Bench(initialState(config))
    bench.begin()
    for (const id of ['e0a', 'e0b', 'e1a', 'e1b', 'e2a', 'e2b']) {
      bench.send({ kind: 'execution-excluded', executionId: executionId(id) })
    }
    expect(bench.state.phase).toBe('failed')
    expect(bench.find('finish').reason).toMatch(/3 groups in a row/)
  })
})

describe('an execution', () => {
  test('lost to the infrastructure gets a new attempt on its own slot', () => {
    const bench = new Bench(initialState({ ...config, executionAttempts: 2 }))
    bench.begin()
    expect(bench.send({ kind: 'execution-failed', executionId: executionId('e0a') })).toEqual(['new-attempt'])
    const kinds = bench.send({
      kind: 'attempt-created',
      executionId: executionId('e0a'),
      nextId: executionId('e0a2'),
    })
    expect(kinds).toEqual(['set-routes', 'start-execution'])
    expect(bench.find('set-routes').routes[0]).toMatchObject({ executionId: 'e0a2', destination: { index: 1 } })
    bench.send({ kind: 'execution-failed', executionId: executionId('e0a2') })
    expect(bench.state.groups[0]?.members[0]?.phase).toBe('excluded')
  })

  test('on a dead cell is held when there is no room, and placed again when the cell is back', () => {
    const bench = new Bench(initialState(config))
    bench.begin()
    bench.send({ kind: 'cell-failed', cell: 1, epoch: 1 })
    expect(bench.find('set-routes').routes.every((r) => r.destination === undefined)).toBe(true)
    bench.send({ kind: 'cell-restarted', cell: 1, epoch: 2 })
    bench.send({ kind: 'cell-restored', cell: 1, epoch: 2, version: 0 })
    expect(bench.find('set-routes').routes.map((r) => r.destination?.index)).toEqual([1, 1, 1, 1])
  })
})

test('reports of an older epoch change nothing', () => {
  const bench = new Bench(initialState(config))
  bench.begin()
  const before = bench.state
  expect(bench.send({ kind: 'cell-failed', cell: 1, epoch: 0 })).toEqual([])
  expect(bench.state).toEqual(before)
})

test('a resumed run goes on with its unfinished groups and dispatches only what is missing', () => {
  const state = resumedState(config, {
    step: 1,
    bursts: 1,
    groups: [
      {
        groupId: groupId('g7'),
        dispatchVersion: 0,
        members: [
          { executionId: executionId('a'), attempt: 0, phase: 'scored' },
          { executionId: executionId('b'), attempt: 1, phase: 'queued' },
        ],
      },
    ],
  })
  const bench = new Bench(state)
  const kinds = bench.send({ kind: 'start' })
  expect(kinds).toContain('start-execution')
  expect(bench.find('create-groups')).toMatchObject({ count: 3, burst: 1, dispatchVersion: 1 })
})

test('one cell alone rolls out, trains when everything is finished, and rolls out again', () => {
  const options = { seed: 4, throughJson: true }
  const world = new TestWorld(initialState(withPhi(0, { cells: 1 })), options, advance, () => {})
  world.run()
  expect(world.log.filter((c) => c.kind === 'enter-training')).toHaveLength(3)
  expect(world.log.filter((c) => c.kind === 'publish')).toHaveLength(3)
})

test('a stopped schedule begins nothing new', () => {
  const bench = new Bench(initialState(config))
  bench.begin()
  bench.send({ kind: 'stop' })
  expect(bench.score('e0a', 'e0b', 'e1a', 'e1b', 'e2a', 'e2b')).toEqual([])
})

test('configurations that can never train are refused, surprising ones are explained', () => {
  const refuse = (change: Partial<SchedulerConfig>): void => {
    try {
      initialState({ ...config, ...change })
    } catch (error) {
      expect(hasCode(error, 'E_CONFIG_SCHEDULER')).toBe(true)
      return
    }
    throw new Error(`accepted ${JSON.stringify(change)}`)
  }
  refuse({ cells: 0 })
  refuse({ policy: 'colocate' })
  refuse({ policy: 'async', trainingCells: 2 })
  refuse({ carryOver: Number.NaN })
  refuse({ standaloneSlots: [0] })
  expect(configWarnings(config)).toEqual([])
  expect(configWarnings({ ...config, cellSlots: 2 })).toHaveLength(2)
})
