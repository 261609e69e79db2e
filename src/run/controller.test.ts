import { afterAll, describe, expect, test } from 'vitest'
import { monotonicClock, realTimers } from '../host/clock.ts'
import { resumedState } from '../scheduler/state.ts'
import type { SchedulerConfig, SchedulerState } from '../scheduler/types.ts'
import { type LeverlessConfig, withLeversOff } from '../../test/support/scheduler-config.ts'
import { PARAMETERS, ToySupervisor } from '../../test/support/toy-cells.ts'
import { ToyForwarding, ToyWork } from '../../test/support/toy-cluster.ts'
import type { ToyWorkOptions } from '../../test/support/toy-cluster.ts'
import { ElasticController } from './controller.ts'
import type { ControllerEvent, RunSummary } from './controller-types.ts'

const base = {
  policy: 'elastic',
  cells: 3,
  cellSlots: 8,
  standaloneSlots: [],
  groupSize: 3,
  groupsPerStep: 2,
  stepsPerBurst: 2,
  carryOver: 0.5,
  totalSteps: 6,
  trainingCells: 1,
  demandAware: true,
  placement: 'balanced',
  executionAttempts: 2,
  cellRestarts: 3,
  excludedGroupsLimit: 4,
} satisfies LeverlessConfig
const config = withLeversOff(base)
const deadlines = {
  cancelMs: 1000,
  switchMs: 1000,
  weightsMs: 1000,
  trainMs: 300,
  reduceMs: 1000,
  optimizeMs: 1000,
  checkpointMs: 1000,
  restartMs: 1000,
  handoverMs: 500,
  heartbeatMs: 500,
  healthMs: 500,
}

class Rig {
  readonly supervisor: ToySupervisor
  readonly forwarding = new ToyForwarding()
  readonly work: ToyWork
  readonly events: ControllerEvent[] = []
  /** What a test does when it sees an event. */
  react: (event: ControllerEvent) => void = () => {}
  readonly #config: SchedulerConfig

  constructor(change: Partial<LeverlessConfig> = {}, work: Partial<ToyWorkOptions> = {}) {
    this.#config = withLeversOff({ ...base, ...change })
    this.supervisor = new ToySupervisor(this.#config.cells)
    this.work = new ToyWork({ seed: 7, groupSize: this.#config.groupSize, ...work }, this.forwarding)
    rigs.push(this)
  }

  controller(
    state: SchedulerState = resumedState(this.#config, { step: 0, bursts: 0, groups: [] }),
  ): ElasticController {
    const controller = new ElasticController({
      initial: state,
      supervisor: this.supervisor,
      forwarding: this.forwarding,
      standalone: [],
      work: this.work,
      clock: monotonicClock,
      timers: realTimers,
      deadlines,
      checkpointFolder: this.work.checkpointAt?.folder ?? this.work.checkpointFolder(0),
      onEvent: (event) => {
        this.events.push(event)
        this.react(event)
      },
    })
    this.work.controller = controller
    return controller
  }

  of<K extends ControllerEvent['kind']>(kind: K): Extract<ControllerEvent, { readonly kind: K }>[] {
    return this.events.filter((e): e is Extract<ControllerEvent, { readonly kind: K }> => e.kind === kind)
  }

  /** What is wrong with a finished run: it should have trained every group of every step once, on every cell. */
  flaws(summary: RunSummary): unknown[] {
    const { totalSteps, groupsPerStep } = this.#config
    const counts = Array.from({ length: PARAMETERS }, () => 0)
    for (const id of this.work.consumed) counts[Number(id.slice(1))] = this.work.microStepsOf(id)
    const flaws: unknown[] = [...this.work.problems]
    const check = (what: string, actual: unknown, expected: unknown): void => {
      if (JSON.stringify(actual) !== JSON.stringify(expected)) flaws.push({ what, actual, expected })
    }
    check('outcome', [summary.outcome, summary.reason, summary.steps], ['done', '', totalSteps])
    check(
      'steps',
      this.work.steps.map((s) => s.step),
      Array.from({ length: totalSteps }, (_, i) => i + 1),
    )
    check('groups', this.work.consumed.length, totalSteps * groupsPerStep)
    for (const { id, process } of this.supervisor.cells) {
      check(`weights of ${id}`, [...(process?.weights ?? [])], counts)
      check(`role of ${id}`, [process?.mode, process?.version], ['rollout', totalSteps])
    }
    return flaws
  }
}
const rigs: Rig[] = []
afterAll(() => {
  for (const rig of rigs.splice(0)) rig.work.close()
})

describe.concurrent('a run trains every group exactly once', () => {
  test('under elastic, with cells that change role while executions go on', async () => {
    const rig = new Rig()
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.liveRoleTransfers).toBeGreaterThan(0)
    expect(summary.requestsMoved).toBeGreaterThan(0)
    expect(summary.cellRestarts).toBe(0)
    for (const cell of summary.cells) {
      const { cellId: _, ...times } = cell
      const total = Object.values(times).reduce((a, b) => a + b, 0)
      expect(Math.abs(total - summary.durationMs)).toBeLessThan(5)
    }
    const [first] = rig.of('role-transfer')
    expect(first).toMatchObject({ cell: 0, to: 'training' })
    expect(rig.of('step').every((e) => (e.summary.metrics['staleness_max'] ?? 9) <= 3)).toBe(true)
    expect(rig.of('step')[0]?.summary.metrics).toMatchObject({ gradient_norm: expect.any(Number), staleness_mean: 0 })
  })

  test('under colocate, where nobody trains before the last execution of a burst', async () => {
    const rig = new Rig({ policy: 'colocate', carryOver: 0 })
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.liveRoleTransfers).toBe(0)
    expect(rig.of('micro-step').every((e) => e.snapshot.waterLevel === 0)).toBe(true)
  })

  test('under async, where the training cell never rolls out before the end', async () => {
    const rig = new Rig({ policy: 'async' })
    expect(rig.flaws(await rig.controller().run())).toEqual([])
    const returns = rig.of('role-transfer').filter((e) => e.to === 'rollout')
    expect(returns.map((e) => e.snapshot.step)).toEqual([6])
  })

  test('with one cell alone', async () => {
    const rig = new Rig({ cells: 1, carryOver: 0 })
    expect(rig.flaws(await rig.controller().run())).toEqual([])
  })

  test('with executions that are excluded', async () => {
    const rig = new Rig({}, { excludeEvery: 4 })
    expect(rig.flaws(await rig.controller().run())).toEqual([])
  })
})

describe.concurrent('a run survives the death of', () => {
  test('a cell in rollout: its calls go on elsewhere', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'execution-started' && e.snapshot.liveExecutions > 5,
      () => rig.supervisor.kill(2),
    )
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(1)
    expect(rig.of('cell-recovered').map((e) => e.cell)).toEqual([2])
  })

  test('a satellite in training: its micro-steps are done again', async () => {
    const rig = new Rig({ demandAware: false })
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.cell === 1,
      () => rig.supervisor.kill(1),
    )
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([{ cell: 1, reason: expect.stringMatching(/ended|died|down/) }])
  })

  test('the core in training: the steps since the checkpoint are undone and done again', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.cell === 0 && e.step === 3,
      () => rig.supervisor.kill(0),
    )
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('steps-undone')).toMatchObject([{ toStep: 2 }])
  })

  test('the core while it publishes: the others take the checkpoint', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'checkpoint',
      () => rig.supervisor.kill(0),
    )
    expect(rig.flaws(await rig.controller().run())).toEqual([])
  })

  test('a cell that hangs: its deadline passes and it is started anew', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.step === 1,
      () => rig.supervisor.cells[0]?.hangs.add('forwardBackward'),
    )
    const summary = await rig.controller().run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')[0]?.reason).toMatch(/did not end within 300 ms/)
  })
})

describe.concurrent('a run ends in order', () => {
  test('a cell that dies too often ends the run with a reason', async () => {
    const rig = new Rig({ cellRestarts: 1 })
    rig.react = (e) => {
      if (e.kind === 'execution-started' || e.kind === 'cell-recovered') rig.supervisor.kill(2)
    }
    const summary = await rig.controller().run()
    expect(summary).toMatchObject({
      outcome: 'failed',
      reason: expect.stringMatching(/cell 2 .* budget is 1; cell 2: /),
    })
  })

  test('books that cannot be kept end the run instead of losing a step', async () => {
    const rig = new Rig()
    rig.work.stepDone = () => {
      throw new Error('the disk is full')
    }
    const summary = await rig.controller().run()
    expect(summary).toMatchObject({ outcome: 'failed', reason: expect.stringMatching(/disk is full/) })
  })

  test('a stopped run can be resumed from its checkpoint, and trains nothing twice', async () => {
    const rig = new Rig()
    let stopped: Promise<void> | undefined
    const first = rig.controller()
    rig.react = once(
      (e) => e.kind === 'step' && e.summary.step === 3,
      () => {
        stopped = first.stop()
      },
    )
    const summary = await first.run()
    await stopped
    expect(summary.outcome).toBe('stopped')
    expect(rig.work.checkpointAt?.step).toBe(2)
    const { groups } = first.state()
    rig.work.stepsUndone(2)
    const point = {
      step: 2,
      bursts: 1,
      firstEpoch: 50,
      groups: groups.map((g) => ({
        groupId: g.groupId,
        dispatchVersion: g.dispatchVersion,
        members: g.members.map((m) => {
          const isScored = m.phase === 'scored'
          return {
            executionId: isScored ? m.executionId : rig.work.newAttempt(),
            attempt: isScored ? m.attempt : m.attempt + 1,
            phase: isScored ? ('scored' as const) : ('queued' as const),
          }
        }),
      })),
    }
    expect(rig.flaws(await rig.controller(resumedState(config, point)).run())).toEqual([])
  })
})

function once(when: (event: ControllerEvent) => boolean, act: () => void): (event: ControllerEvent) => void {
  let isDone = false
  return (event) => {
    if (isDone || !when(event)) return
    isDone = true
    act()
  }
}
