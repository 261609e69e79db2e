/** @file What the live controller needs from its surroundings, and what it tells them. */
import type { Clock, Timers } from '../core/clock.ts'
import type { CellId, ExecutionId, GroupId } from '../core/ids.ts'
import type { CellSupervisor, HeldResult } from '../ports/cell.ts'
import type { StandaloneEngine } from '../ports/engine.ts'
import type { ForwardingPoint } from '../ports/forwarding.ts'
import type { Command, CreatedGroup } from '../scheduler/messages.ts'
import type { SchedulerState } from '../scheduler/types.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'

/** The part of a run that is not scheduling: executions, groups, batches, the store. */
export interface RunWork {
  /** Durable when it returns. */
  createGroups(request: {
    readonly count: number
    readonly dispatchVersion: number
    readonly burst: number
  }): readonly CreatedGroup[]
  /**
   * Runs it in the background; its route is set. Reports through `executionEnded`, then `executionScored` or
   * `executionExcluded`; or `executionFailed` for an infrastructure failure. Must not call back synchronously
   * with an error: report it.
   */
  startExecution(executionId: ExecutionId): void
  /** Ends its harness now as if its time were over; what it left behind is scored. Ignored for one that has ended. */
  cutExecution(executionId: ExecutionId): void
  /** A new attempt after `executionFailed`; durable when it returns. Called before `startExecution` of the new id. */
  newAttempt(executionId: ExecutionId): ExecutionId
  /**
   * Cuts a group into micro-steps. Weights are final: each group carries 1/B of the step. May be called again
   * for the same group when a step starts over. An empty list is a group without gradient.
   */
  microSteps(groupId: GroupId, step: number): Promise<readonly MicroBatch[]>
  /** Work on executions before their group is complete; a run without it does none. */
  readonly early?: EarlyWork
  objective(): Objective
  /** @param step steps done before it. */
  optimizer(step: number): OptimizerParams
  /** Called in order, awaited before the checkpoint. Not durable by itself: `checkpoint` is. */
  stepDone(summary: StepSummary): void | Promise<void>
  /** Steps after `toStep` were lost with the core and are done again: forget their summaries. */
  stepsUndone(toStep: number): void
  /** An existing, empty folder for the checkpoint of this step. [absolute path] */
  checkpointFolder(step: number): string | Promise<string>
  /** The core has saved into `folder`: make steps, consumed groups and the checkpoint durable in one transaction. */
  checkpoint(summary: CheckpointSummary): Promise<void>
  /** Optional look at every training result, for ratio statistics. */
  observe?(groupId: GroupId, batch: MicroBatch, result: ForwardBackwardResult): void
}

/** What makes gradients of executions useful before their advantage is known. */
export interface EarlyWork {
  /**
   * Micro-step of one scored execution with token weights of 1 and the supposed sign as its advantage; undefined when it
   * has no gradient, or needs more than one micro-step.
   */
  batch(executionId: ExecutionId): MicroBatch | undefined
  /** A member of this step keeps the gradient of what `batch` gave. */
  held(executionId: ExecutionId, step: number, batch: MicroBatch, result: HeldResult): void
  /** As `microSteps`, but those of `held` whose gradient can serve are a micro-step each. */
  microSteps(groupId: GroupId, step: number, held: readonly ExecutionId[]): Promise<EarlyCut>
}

export interface EarlyCut {
  readonly batches: readonly MicroBatch[]
  readonly held: readonly HeldMicroStep[]
}

/** A micro-step whose gradient is `scale` times the one that is kept of its execution. */
export interface HeldMicroStep {
  readonly index: number
  readonly executionId: ExecutionId
  readonly scale: number
  /** What computing it would have given. */
  readonly result: ForwardBackwardResult
}

export interface StepSummary {
  /** Steps done after this one, from 1. */
  readonly step: number
  readonly burst: number
  readonly groups: readonly GroupId[]
  /**
   * loss, entropy, gradient_norm, clipped_tokens, masked_tokens, micro_steps, staleness_mean, staleness_max [steps],
   * step_ms, train_ms, reduce_ms, optimize_ms; and of the time since the step before: carry_over (phi) [steps],
   * executions_cut, early_gradients and early_micro_steps (gradients kept before their group was complete, and
   * those that served, where any were kept), handed_over_tokens, over_commit (executions allowed per slot), slot_load_max (most running
   * executions per slot in rollout).
   */
  readonly metrics: Readonly<Record<string, number>>
}

export interface CheckpointSummary {
  readonly step: number
  readonly burst: number
  readonly policyVersion: number
  /** What `checkpointFolder` gave. */
  readonly folder: string
  /** Groups consumed since the previous checkpoint. */
  readonly groups: readonly GroupId[]
}

/** One kind of command. */
export type CommandOf<K extends Command['kind']> = Extract<Command, { readonly kind: K }>

/** Deadlines of the commands. [ms] */
export interface ControllerDeadlines {
  readonly cancelMs: number
  readonly switchMs: number
  readonly weightsMs: number
  readonly trainMs: number
  readonly reduceMs: number
  readonly optimizeMs: number
  readonly checkpointMs: number
  readonly restartMs: number
  /** Of a hand-over: what is not there by then is computed again. */
  readonly handoverMs: number
  /** Between two questions to a cell or a failed standalone engine whether it is alive. */
  readonly heartbeatMs: number
  /** Of an answer to one of them. */
  readonly healthMs: number
}

export interface ControllerOptions {
  /** From `initialState` or `resumedState`. */
  readonly initial: SchedulerState
  readonly supervisor: CellSupervisor
  readonly forwarding: ForwardingPoint
  /** In the order of `standaloneSlots`. The controller registers them and the cells with the forwarding point. */
  readonly standalone: readonly StandaloneEngine[]
  readonly work: RunWork
  readonly clock: Clock
  readonly timers: Timers
  readonly deadlines: ControllerDeadlines
  /** Checkpoint that holds the weights of `initial.policyVersion`: every cell loads it first. [absolute path] */
  readonly checkpointFolder: string
  readonly onEvent?: (event: ControllerEvent) => void
}

/** Time each cell spent, since the run started. In rollout it is busy while it owns a live execution. [ms] */
export interface CellUsage {
  readonly cellId: CellId
  readonly rolloutBusyMs: number
  readonly rolloutIdleMs: number
  readonly trainingBusyMs: number
  readonly trainingIdleMs: number
  readonly switchingMs: number
  readonly failedMs: number
}

/** What the live panel shows. */
export interface ControllerSnapshot {
  readonly step: number
  readonly totalSteps: number
  readonly burst: number
  readonly policyVersion: number
  /** w and C_R. [executions] */
  readonly waterLevel: number
  readonly capacity: number
  readonly prefix: number
  /** phi. [steps] */
  readonly carryOver: number
  readonly liveExecutions: number
  readonly queuedExecutions: number
  readonly heldExecutions: number
  readonly readyGroups: number
  readonly outstandingGroups: number
  readonly cells: readonly { readonly phase: string; readonly executions: number; readonly busy: boolean }[]
  readonly standalone: readonly {
    readonly phase: string
    readonly executions: number
    readonly policyVersion: number
  }[]
}

export interface RoleTransfer {
  readonly cell: number
  readonly to: 'training' | 'rollout'
  /** Live executions of the whole run when it began, and those re-routed away from this cell. */
  readonly liveExecutions: number
  readonly executionsMoved: number
  /** Model calls that were running on the cell and went on elsewhere. */
  readonly requestsMoved: number
  /** Cached context that its executions found at their destinations. [tokens], [bytes] */
  readonly tokensHandedOver: number
  readonly bytesHandedOver: number
  readonly durationMs: number
  /** Its parts. On the way to rollout everything is `enterMs`. */
  readonly handoverMs: number
  readonly cancelMs: number
  readonly enterMs: number
}

/** Every event carries `atMs` of the controller's clock. */
export type ControllerEvent = { readonly atMs: number; readonly snapshot: ControllerSnapshot } & (
  | {
      readonly kind: 'dispatched'
      readonly burst: number
      readonly groups: readonly GroupId[]
      readonly dispatchVersion: number
    }
  | { readonly kind: 'execution-started'; readonly executionId: ExecutionId }
  | {
      readonly kind: 'execution-finished'
      readonly executionId: ExecutionId
      readonly how: 'scored' | 'excluded'
      /** Why it was excluded, '' otherwise. */
      readonly reason: string
    }
  | { readonly kind: 'execution-failed'; readonly executionId: ExecutionId; readonly reason: string }
  | { readonly kind: 'execution-retried'; readonly executionId: ExecutionId; readonly nextId: ExecutionId }
  /** Its group has waited long enough for it: its work so far is scored. */
  | { readonly kind: 'execution-cut'; readonly executionId: ExecutionId }
  | { readonly kind: 'group-assigned'; readonly groupId: GroupId; readonly step: number; readonly microSteps: number }
  | ({ readonly kind: 'role-transfer' } & RoleTransfer)
  /** Part of a hand-over failed: those executions are computed again from their tokens. */
  | { readonly kind: 'hand-over-missed'; readonly cell: number; readonly reason: string }
  /** A cell has the weights of the open step and a zero gradient. */
  | { readonly kind: 'joined'; readonly cell: number; readonly step: number; readonly durationMs: number }
  | {
      readonly kind: 'micro-step'
      readonly cell: number
      readonly step: number
      readonly groupId: GroupId
    }
  | { readonly kind: 'step'; readonly summary: StepSummary }
  | { readonly kind: 'steps-undone'; readonly toStep: number }
  | { readonly kind: 'checkpoint'; readonly summary: CheckpointSummary; readonly durationMs: number }
  | { readonly kind: 'published'; readonly version: number; readonly cell: number }
  | { readonly kind: 'cell-failed'; readonly cell: number; readonly reason: string }
  | { readonly kind: 'cell-recovered'; readonly cell: number; readonly durationMs: number }
  /** Its micro-step takes far longer than usual. A satellite is failed for it, so that others do its work. */
  | { readonly kind: 'cell-slow'; readonly cell: number; readonly waitedMs: number; readonly usualMs: number }
  | { readonly kind: 'standalone-failed'; readonly engine: number; readonly reason: string }
  | { readonly kind: 'standalone-recovered'; readonly engine: number; readonly durationMs: number }
  /** The checkpoint cannot be written for want of space. It is tried again: whoever frees space need do no more. */
  | { readonly kind: 'disk-full'; readonly reason: string; readonly retryInMs: number }
  | { readonly kind: 'finished'; readonly outcome: RunSummary['outcome'] }
)

export interface RunSummary {
  readonly outcome: 'done' | 'failed' | 'stopped'
  /** Why it failed, '' otherwise. */
  readonly reason: string
  readonly steps: number
  readonly policyVersion: number
  readonly durationMs: number
  /** Moves in both directions, and those to training made while executions were live. */
  readonly roleTransfers: number
  readonly liveRoleTransfers: number
  readonly requestsMoved: number
  /** [tokens] */
  readonly tokensHandedOver: number
  readonly executionsCut: number
  readonly cellRestarts: number
  readonly excludedGroups: number
  readonly cells: readonly CellUsage[]
}

/** What the lead's side calls. `ElasticController` in controller.ts implements it. */
export interface Controller {
  /** Ends when the run is done, stopped or failed; never rejects for a failure of a cell. */
  run(): Promise<RunSummary>
  executionEnded(executionId: ExecutionId): void
  executionScored(executionId: ExecutionId): void
  /** `reason` is shown; valid while it runs and while it is scored. */
  executionExcluded(executionId: ExecutionId, reason: string): void
  /** Infrastructure failure while it ran. */
  executionFailed(executionId: ExecutionId, reason: string): void
  /** Begins nothing new, lets commands under way end, and makes `run` return. Work since the last checkpoint is done again on resume. */
  stop(): Promise<void>
  /** Ends the run with outcome `failed`: something the run cannot go on without broke (the store, for example). */
  abort(reason: string): void
  snapshot(): ControllerSnapshot
  /** Time per cell so far. */
  usage(): readonly CellUsage[]
  state(): SchedulerState
}
