/** @file A controller over toy cells, with what a test sees of its run, and the check of what a run must have done. */
import { monotonicClock, realTimers } from '../../src/host/clock.ts'
import type { Clock, Timers } from '../../src/core/clock.ts'
import { ElasticController } from '../../src/run/controller.ts'
import type { ControllerDeadlines, ControllerEvent, RunSummary } from '../../src/run/controller-types.ts'
import { resumedState } from '../../src/scheduler/state.ts'
import type { SchedulerConfig, SchedulerState } from '../../src/scheduler/types.ts'
import { type LeverlessConfig, withLeversOff } from './scheduler-config.ts'
import { ToyStandalone, ToySupervisor } from './toy-cells.ts'
import { ToyForwarding, ToyWork } from './toy-cluster.ts'
import type { ToyWorkOptions } from './toy-cluster.ts'
import { PARAMETERS } from './toy-training.ts'

const BASE = {
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

const DEADLINES: ControllerDeadlines = {
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

/** Time that runs so many times faster than the cells, for waits of minutes. */
export function hurried(speed: number): { readonly clock: Clock; readonly timers: Timers } {
  return {
    clock: { now: () => monotonicClock.now() * speed },
    timers: { after: (delayMs, action) => realTimers.after(delayMs / speed, action) },
  }
}

export interface RigOptions {
  readonly config?: Partial<LeverlessConfig>
  readonly work?: Partial<ToyWorkOptions>
  readonly deadlines?: Partial<ControllerDeadlines>
  /** Default 1. */
  readonly speed?: number
}

const rigs: Rig[] = []

/** Removes what every rig of a test file left. */
export function closeRigs(): void {
  for (const rig of rigs.splice(0)) rig.work.close()
}

export class Rig {
  readonly config: SchedulerConfig
  readonly supervisor: ToySupervisor
  readonly standalone: readonly ToyStandalone[]
  readonly forwarding = new ToyForwarding()
  readonly work: ToyWork
  readonly events: ControllerEvent[] = []
  /** What a test does when it sees an event. */
  react: (event: ControllerEvent) => void = () => {}
  readonly #options: RigOptions

  constructor(options: RigOptions = {}) {
    this.#options = options
    this.config = withLeversOff({ ...BASE, ...options.config })
    this.supervisor = new ToySupervisor(this.config.cells)
    this.standalone = this.config.standaloneSlots.map((slots) => new ToyStandalone(slots))
    this.work = new ToyWork({ seed: 7, groupSize: this.config.groupSize, ...options.work }, this.forwarding)
    rigs.push(this)
  }

  controller(state: SchedulerState = resumedState(this.config, { step: 0, bursts: 0, groups: [] })): ElasticController {
    const controller = new ElasticController({
      initial: state,
      supervisor: this.supervisor,
      forwarding: this.forwarding,
      standalone: this.standalone,
      work: this.work,
      ...hurried(this.#options.speed ?? 1),
      deadlines: { ...DEADLINES, ...this.#options.deadlines },
      checkpointFolder: this.work.checkpointAt?.folder ?? this.work.checkpointFolder(0),
      onEvent: (event) => {
        this.events.push(event)
        this.react(event)
      },
    })
    this.work.controller = controller
    return controller
  }

  run(): Promise<RunSummary> {
    return this.controller().run()
  }

  of<K extends ControllerEvent['kind']>(kind: K): Extract<ControllerEvent, { readonly kind: K }>[] {
    return this.events.filter((e): e is Extract<ControllerEvent, { readonly kind: K }> => e.kind === kind)
  }

  /** What is wrong with a finished run: it should have trained every group of every step once, on every cell. */
  flaws(summary: RunSummary): unknown[] {
    const { totalSteps, groupsPerStep } = this.config
    const sums = Array.from({ length: PARAMETERS }, () => 0)
    for (const id of this.work.consumed) sums[Number(id.slice(1))] = this.work.sumOf(id)
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
      check(`weights of ${id}`, [...(process?.weights ?? [])], sums)
      check(`role of ${id}`, [process?.mode, process?.version], ['rollout', totalSteps])
    }
    return flaws
  }
}

/** Acts at the first event that is wanted. */
export function once(when: (event: ControllerEvent) => boolean, act: () => void): (event: ControllerEvent) => void {
  let isDone = false
  return (event) => {
    if (isDone || !when(event)) return
    isDone = true
    act()
  }
}
