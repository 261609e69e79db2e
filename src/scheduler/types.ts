/**
 * @file What the scheduler knows: plain serializable data only. What it hears and asks for is messages.ts.
 *
 * `advance(state, event, atMs) -> { state, commands }` is deterministic; a state that went through JSON
 * behaves the same. Letters: K cells, Ce slots per cell, Cs standalone slots, N executions per group,
 * B groups per step, mu steps per burst, phi groups carried over, in steps (a real number).
 */
import type { ExecutionId, GroupId } from '../core/ids.ts'

/**
 * `elastic` and `qwengyre`: cells move to training one by one as the water level falls; `qwengyre` is the published
 * behaviour, every lever beyond it off. `colocate`: every cell rolls out until
 * every execution of the burst is scored, then every cell trains; needs carryOver 0. `async`: cells
 * 0..trainingCells-1 always train, the others always roll out.
 */
export type SchedulerPolicy = 'elastic' | 'qwengyre' | 'colocate' | 'async'

export interface SchedulerConfig {
  readonly policy: SchedulerPolicy
  /** K, at least 1. Cell 0 is the core. */
  readonly cells: number
  /** Ce. [executions] */
  readonly cellSlots: number
  /** Slots of each standalone engine; their sum is Cs. [executions] */
  readonly standaloneSlots: readonly number[]
  /** N. [executions] */
  readonly groupSize: number
  /** B. [groups] */
  readonly groupsPerStep: number
  /** mu. [steps] */
  readonly stepsPerBurst: number
  /** phi until there is enough history to choose it: dispatch depth is round((phi + mu) B) groups. [steps] */
  readonly carryOver: number
  /** What the slip-budget controller may choose phi from, in quarters; both equal to carryOver keep it fixed. [steps] */
  readonly carryOverMin: number
  readonly carryOverMax: number
  /**
   * Share of a group that has ended before its last members may be cut: one that has run as long as the quorum took and
   * `stragglerGrace` of that longer is ended, and its work so far is scored. 1 never cuts.
   */
  readonly stragglerQuorum: number
  readonly stragglerGrace: number
  /** Executions per slot at most, admitted while engines are seen idle; 1 never over-commits. */
  readonly overCommit: number
  /** Destinations fetch the key-value blocks of a leaving cell before its requests are cancelled. */
  readonly kvHandover: boolean
  /** Idle members of the open step compute gradients of scored executions before their group is complete. */
  readonly earlyForward: boolean
  /** The run ends after so many optimizer steps. */
  readonly totalSteps: number
  /** Cells that always train under `async`; ignored by the others. */
  readonly trainingCells: number
  /** A satellite moves only when more than the present members can claim is waiting. The core always moves by the water level alone. */
  readonly demandAware: boolean
  /** `latest`: the destination that leaves last (scheduler.md E2). `balanced`: the least loaded one, ties to the one that leaves last. */
  readonly placement: 'latest' | 'balanced'
  /** Attempts one member of a group gets before it is excluded, at least 1. */
  readonly executionAttempts: number
  /** Restarts of one cell before the run fails. */
  readonly cellRestarts: number
  /** Groups excluded in a row, none ready in between, before the run fails. */
  readonly excludedGroupsLimit: number
}

/** Where an execution's model calls go. */
export type Destination =
  | { readonly kind: 'cell'; readonly index: number }
  | { readonly kind: 'standalone'; readonly index: number }

/** `held` is running without a destination after a cell death: its requests wait in the gateway. */
export type ExecutionPhase = 'queued' | 'running' | 'held' | 'retrying' | 'evaluating' | 'scored' | 'excluded'

export interface ExecutionSlot {
  /** Id of the present attempt. */
  readonly executionId: ExecutionId
  readonly attempt: number
  readonly phase: ExecutionPhase
  /** Slot owner; set while `running`, and while `retrying` (a new attempt keeps the slot of the old one). */
  readonly destination: Destination | undefined
  readonly routeEpoch: number
  /** When the present attempt began to run, moved on by the time it was held; undefined before. [ms] */
  readonly startedAtMs: number | undefined
  /** Since when it is `held`; undefined otherwise. [ms] */
  readonly heldAtMs: number | undefined
  /** The present attempt was told to end early. */
  readonly cut: boolean
}

/** `trained` is consumed by weights that no checkpoint holds yet: a core death makes it `ready` again. */
export type GroupPhase = 'running' | 'ready' | 'assigned' | 'trained'

export interface GroupSlot {
  readonly groupId: GroupId
  /** v_d: policy version at dispatch. */
  readonly dispatchVersion: number
  readonly phase: GroupPhase
  /** Order of becoming ready; undefined before. */
  readonly readyOrder: number | undefined
  /** Step that consumed it, while `trained`. */
  readonly trainedStep: number | undefined
  /** Undefined when this process did not dispatch it. [ms] */
  readonly dispatchedAtMs: number | undefined
  /** When its first member began to run; undefined before. [ms] */
  readonly startedAtMs: number | undefined
  /** Time from then until the quorum had ended; undefined before, and when it was there from the start. [ms] */
  readonly quorumMs: number | undefined
  readonly members: readonly ExecutionSlot[]
}

/**
 * `draining`: no admission, requests being cancelled. `entering`: loading the training state.
 * `returning`: loading published weights and re-opening for rollout. `failed`: process gone or given up.
 * `restarted`: a fresh process without weights. `restoring`: loading the last checkpoint.
 */
export type CellPhase =
  | 'rollout'
  | 'draining'
  | 'entering'
  | 'training'
  | 'returning'
  | 'failed'
  | 'restarted'
  | 'restoring'

export interface CellSlot {
  readonly phase: CellPhase
  /** Fencing token: +1 whenever who may write changes. Commands carry it; reports with another one are ignored. */
  readonly epoch: number
  /** Version it serves in rollout. */
  readonly policyVersion: number
  /** It was told to take a newer policy version and has not answered. */
  readonly publishing: boolean
  /** Member of the open step: holds its weights, gradient zeroed. */
  readonly joined: boolean
  readonly joining: boolean
  /** Joins that failed in a row. */
  readonly joinFailures: number
  readonly restarts: number
  /** Micro-step it computes now. */
  readonly claim: Claim | undefined
  /** Micro-steps in its accumulated gradient. */
  readonly accumulated: readonly MicroStepId[]
  /** Gradient it computes now, to be kept aside. Never beside a claim. */
  readonly early: EarlyGradient | undefined
  /** Gradients it keeps aside under the weights of the open step. */
  readonly kept: readonly EarlyGradient[]
}

/** The gradient of an execution before its advantage is known. */
export interface EarlyGradient {
  readonly groupId: GroupId
  readonly executionId: ExecutionId
  /** Unique over the run; its name in the cell that keeps it. */
  readonly key: string
}

/** A micro-step that holds one execution, so that a gradient kept of it can serve. */
export interface EarlyMicroStep {
  readonly index: number
  readonly executionId: ExecutionId
}

export interface MicroStepId {
  readonly groupId: GroupId
  readonly index: number
}

export interface Claim extends MicroStepId {
  /** Unique over the run; the idempotency key of the delivery. */
  readonly key: string
  /** Key of the gradient kept in the cell that is added instead of computing one. */
  readonly held?: string | undefined
}

export interface StepSlot {
  /** Steps done before it; also the version of the weights its members hold. */
  readonly index: number
  /** +1 when the step starts over. */
  readonly attempt: number
  readonly phase: 'open' | 'reducing' | 'optimizing'
  readonly groups: readonly {
    readonly groupId: GroupId
    /** Micro-steps it was cut into; undefined while they are being built. */
    readonly microSteps: number | undefined
    /** Those that a kept gradient can serve. */
    readonly early: readonly EarlyMicroStep[]
  }[]
  readonly queue: readonly MicroStepId[]
  /** Executions whose gradient a present member was told to keep, whatever came of it. */
  readonly tried: readonly ExecutionId[]
}

export interface BurstSlot {
  /** From 0. */
  readonly id: number
  /** s at its start. */
  readonly firstStep: number
  readonly stepsLeft: number
  readonly startedAtMs: number
  /** Time without training work. [ms] */
  readonly idleMs: number
  /** When the last group it takes was assigned; undefined before. [ms] */
  readonly filledAtMs: number | undefined
}

/** What happened, as far as phi is chosen from it. Bounded. */
export interface ScheduleHistory {
  /** Time of groups from dispatch to ready, in the order they became ready; whole dispatches are dropped. [ms] */
  readonly completions: readonly { readonly dispatchVersion: number; readonly elapsedMs: number }[]
  /** Full bursts, boundary to boundary: `workMs` with training work, `tailMs` after the last group came. [ms] */
  readonly bursts: readonly { readonly workMs: number; readonly tailMs: number }[]
}

/** How busy the engines are, and what is made of it. */
export interface LoadSlot {
  /** Moving average of generations running as a share of slots while executions wait; undefined before a report. */
  readonly busyShare: number | undefined
  /** Reports since the factor last changed, up to what the next change takes. */
  readonly reports: number
  /** Executions admitted per slot, 1 to `overCommit`. */
  readonly factor: number
}

/** The one rollout-to-training move that may be under way. */
export interface TransferSlot {
  readonly id: number
  readonly cell: number
  /** It may be undone until its cell enters training. */
  readonly phase: 'handing-over' | 'cancelling' | 'entering'
  /** Live executions re-routed away from the cell. */
  readonly moved: number
}

/** A rollout engine beside the cells: it never trains, and takes every published version. */
export interface StandaloneSlot {
  readonly phase: 'serving' | 'failed'
  /** Fencing token, +1 on every failure, and when it came back with a version that is not the published one. */
  readonly epoch: number
  readonly policyVersion: number
  /** It was told to take a newer policy version and has not answered. */
  readonly publishing: boolean
}

export type SchedulerPhase = 'idle' | 'running' | 'checkpointing' | 'publishing' | 'done' | 'failed'

export interface SchedulerState {
  readonly config: SchedulerConfig
  readonly phase: SchedulerPhase
  /** True after `stop`: nothing new is begun. */
  readonly stopping: boolean
  /** Why the run failed, '' otherwise. */
  readonly failure: string
  /** v: s at the last publication. */
  readonly policyVersion: number
  /** s: optimizer steps done. */
  readonly step: number
  /** Step of the last durable checkpoint. */
  readonly checkpointStep: number
  readonly burst: BurstSlot
  /** k: cells 0..k-1 are the training prefix. */
  readonly prefix: number
  /** d, p, f: cumulative executions dispatched, started, terminated. */
  readonly dispatched: number
  readonly started: number
  readonly terminated: number
  /** Times d grew. The water level may rise only when this does. */
  readonly dispatches: number
  /** Groups asked for and not yet created. */
  readonly creating: number
  /** Policy version they were asked for at. */
  readonly creatingVersion: number
  readonly excludedInARow: number
  readonly excludedGroups: number
  /** Groups not yet durable in a checkpoint, in dispatch order. */
  readonly groups: readonly GroupSlot[]
  readonly cells: readonly CellSlot[]
  readonly standalone: readonly StandaloneSlot[]
  readonly openStep: StepSlot | undefined
  readonly transfer: TransferSlot | undefined
  /** Time of the last event, by the clock of whoever drives the scheduler. [ms] */
  readonly nowMs: number
  /** phi at present. [steps] */
  readonly carryOver: number
  readonly history: ScheduleHistory
  readonly load: LoadSlot
  /** Earliest time asked for by a `wake` that has not come; undefined without one. [ms] */
  readonly wakeAtMs: number | undefined
  /** Executions told to end early, since this process began. */
  readonly cutExecutions: number
  /** Source of unique ids: transfers, claims, ready order. */
  readonly serial: number
}
