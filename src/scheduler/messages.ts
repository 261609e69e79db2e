/** @file What the scheduler hears and what it asks for: plain serializable data only. */
import type { ExecutionId, GroupId } from '../core/ids.ts'
import type { Destination, EarlyGradient, EarlyMicroStep, Claim, SchedulerState } from './types.ts'

export interface CreatedGroup {
  readonly groupId: GroupId
  /** N ids. */
  readonly executionIds: readonly ExecutionId[]
}

/** What happened. Everything that names a cell carries the epoch of the command or process it speaks about. */
export type SchedulerEvent =
  | { readonly kind: 'start' }
  /** A time asked for by `wake` has come. */
  | { readonly kind: 'tick' }
  | { readonly kind: 'groups-created'; readonly groups: readonly CreatedGroup[] }
  /** The harness ended (finished, crashed, timed out); its work is being scored. */
  | { readonly kind: 'execution-ended'; readonly executionId: ExecutionId }
  | { readonly kind: 'execution-scored'; readonly executionId: ExecutionId }
  /** Never to be trained: overall timeout, evaluation budget exhausted. */
  | { readonly kind: 'execution-excluded'; readonly executionId: ExecutionId }
  /** Infrastructure failure while it ran: a new attempt within the budget, else excluded. */
  | { readonly kind: 'execution-failed'; readonly executionId: ExecutionId }
  | { readonly kind: 'attempt-created'; readonly executionId: ExecutionId; readonly nextId: ExecutionId }
  /** Destinations have the key-value blocks they could get in time. Comes always, also when they got none. */
  | { readonly kind: 'handed-over'; readonly transferId: number }
  | { readonly kind: 'cancelled'; readonly transferId: number }
  | { readonly kind: 'entered-training'; readonly cell: number; readonly epoch: number }
  | {
      readonly kind: 'micro-steps-built'
      readonly groupId: GroupId
      readonly step: number
      readonly attempt: number
      readonly count: number
      /** Those that hold one execution whose kept gradient can serve; absent for none. */
      readonly early?: readonly EarlyMicroStep[]
    }
  | { readonly kind: 'joined'; readonly cell: number; readonly epoch: number; readonly step: number }
  | { readonly kind: 'join-failed'; readonly cell: number; readonly epoch: number; readonly step: number }
  | { readonly kind: 'micro-step-done'; readonly cell: number; readonly epoch: number; readonly key: string }
  | { readonly kind: 'gradient-held'; readonly cell: number; readonly epoch: number; readonly key: string }
  /** It is not kept, or cannot serve; the cell is well. `key` is that of the gradient to keep, or of the claim. */
  | { readonly kind: 'gradient-refused'; readonly cell: number; readonly epoch: number; readonly key: string }
  /** These three carry the step of their command: the epoch of the core outlives its steps. */
  | { readonly kind: 'reduced'; readonly epoch: number; readonly step: number }
  | { readonly kind: 'reduce-failed'; readonly epoch: number; readonly step: number }
  | { readonly kind: 'optimized'; readonly epoch: number; readonly step: number }
  | { readonly kind: 'checkpointed'; readonly step: number }
  /** The core could not save: it counts as failed. */
  | { readonly kind: 'checkpoint-failed'; readonly step: number }
  | { readonly kind: 'published'; readonly cell: number; readonly epoch: number; readonly version: number }
  /** Its process is gone or does not answer. Said twice, it counts once. */
  | { readonly kind: 'cell-failed'; readonly cell: number; readonly epoch: number }
  | { readonly kind: 'cell-restarted'; readonly cell: number; readonly epoch: number }
  | { readonly kind: 'restart-failed'; readonly cell: number; readonly epoch: number }
  | { readonly kind: 'cell-restored'; readonly cell: number; readonly epoch: number; readonly version: number }
  | { readonly kind: 'standalone-published'; readonly engine: number; readonly epoch: number; readonly version: number }
  /** It does not answer, or cannot take a version. Said twice, it counts once. */
  | { readonly kind: 'standalone-failed'; readonly engine: number; readonly epoch: number }
  /** It answers again, and serves this version. */
  | { readonly kind: 'standalone-recovered'; readonly engine: number; readonly epoch: number; readonly version: number }
  /** Generations running now over all destinations that serve, as a share of their slots. */
  | { readonly kind: 'load-seen'; readonly share: number }
  | { readonly kind: 'stop' }
  | { readonly kind: 'fatal'; readonly reason: string }

export interface ScheduledRoute {
  readonly executionId: ExecutionId
  /** undefined holds its requests. */
  readonly destination: Destination | undefined
  readonly routeEpoch: number
}

/** Of the groups of one step: optimizer steps between their dispatch and the weights they were trained on. [steps] */
export interface StepStaleness {
  readonly mean: number
  readonly max: number
}

/** What the controller is to do. Each is answered by the event named beside it, or by `cell-failed`. */
export type Command =
  /** -> groups-created */
  | { readonly kind: 'create-groups'; readonly count: number; readonly dispatchVersion: number; readonly burst: number }
  /** Its route was set before. -> execution-ended, -scored, -excluded, -failed in time. */
  | { readonly kind: 'start-execution'; readonly executionId: ExecutionId }
  /** -> attempt-created */
  | { readonly kind: 'new-attempt'; readonly executionId: ExecutionId }
  /** End its harness now as if its time were over, and score what it left behind. -> execution-ended and the rest */
  | { readonly kind: 'cut-execution'; readonly executionId: ExecutionId }
  /** -> tick, at this time or later */
  | { readonly kind: 'wake'; readonly atMs: number }
  /** Applied at once, all together. No answer. */
  | { readonly kind: 'set-routes'; readonly routes: readonly ScheduledRoute[] }
  /**
   * Pin what the cell has cached of these executions and let their new destinations fetch it; the cell goes on
   * generating meanwhile. Never fails: what did not come in time is computed again. -> handed-over
   */
  | {
      readonly kind: 'hand-over'
      readonly transferId: number
      readonly cell: number
      readonly epoch: number
      readonly moves: readonly { readonly executionId: ExecutionId; readonly destination: Destination }[]
    }
  /** -> cancelled */
  | {
      readonly kind: 'cancel-in-flight'
      readonly transferId: number
      readonly cell: number
      readonly epoch: number
      /** Live executions re-routed away from it. */
      readonly moved: number
    }
  /** -> entered-training */
  | { readonly kind: 'enter-training'; readonly cell: number; readonly epoch: number }
  /** -> micro-steps-built */
  | {
      readonly kind: 'build-micro-steps'
      readonly groupId: GroupId
      readonly step: number
      readonly attempt: number
      /** Members whose gradient is kept by a member of the step; absent for none. */
      readonly held?: readonly ExecutionId[]
    }
  /** Zero the gradient; a satellite first pulls the core's weights. -> joined | join-failed */
  | { readonly kind: 'join-step'; readonly cell: number; readonly epoch: number; readonly step: number }
  /** -> micro-step-done */
  | {
      readonly kind: 'train'
      readonly cell: number
      readonly epoch: number
      readonly step: number
      readonly attempt: number
      readonly claim: Claim
    }
  /** Compute the gradient of an execution and keep it aside. -> gradient-held | gradient-refused */
  | {
      readonly kind: 'hold-gradient'
      readonly cell: number
      readonly epoch: number
      readonly step: number
      readonly early: EarlyGradient
    }
  /** Add the kept gradient that `claim.held` names, scaled. -> micro-step-done | gradient-refused */
  | {
      readonly kind: 'apply-held'
      readonly cell: number
      readonly epoch: number
      readonly step: number
      readonly attempt: number
      readonly claim: Claim & { readonly held: string }
    }
  /** The core adds the gradients of these cells, in this order. -> reduced | reduce-failed */
  | { readonly kind: 'reduce'; readonly epoch: number; readonly step: number; readonly from: readonly number[] }
  /** -> optimized. `empty` steps have no gradient: nothing is to be changed. */
  | {
      readonly kind: 'optimize'
      readonly epoch: number
      readonly step: number
      readonly key: string
      readonly empty: boolean
    }
  /** A step is done; staleness is step - dispatchVersion of each group. No answer. */
  | {
      readonly kind: 'step-done'
      /** Steps done, from 1. */
      readonly step: number
      readonly burst: number
      readonly groups: readonly { readonly groupId: GroupId; readonly dispatchVersion: number }[]
      readonly staleness: StepStaleness
    }
  /** Steps since the last checkpoint were undone by a core death: forget their summaries. No answer. */
  | { readonly kind: 'steps-undone'; readonly toStep: number }
  /** Stamp the core's weights with the version, save, make durable. -> checkpointed | checkpoint-failed */
  | {
      readonly kind: 'checkpoint'
      readonly epoch: number
      readonly step: number
      readonly burst: number
      readonly policyVersion: number
      readonly groups: readonly GroupId[]
    }
  /** Take this version (from the core, else from the checkpoint), then open for rollout if told. -> published */
  | {
      readonly kind: 'publish'
      readonly cell: number
      readonly epoch: number
      readonly version: number
      readonly enterRollout: boolean
    }
  /** Take this version from the checkpoint that holds it. -> standalone-published | standalone-failed */
  | {
      readonly kind: 'publish-standalone'
      readonly engine: number
      readonly epoch: number
      readonly version: number
    }
  /** Ask until it answers, then give it this version. -> standalone-recovered */
  | {
      readonly kind: 'recover-standalone'
      readonly engine: number
      readonly epoch: number
      readonly version: number
    }
  /** -> cell-restarted | restart-failed, with the epoch given here */
  | { readonly kind: 'restart-cell'; readonly cell: number; readonly epoch: number }
  /** Load the checkpoint of this version, then open for rollout. -> cell-restored */
  | { readonly kind: 'restore-cell'; readonly cell: number; readonly epoch: number; readonly version: number }
  | { readonly kind: 'finish'; readonly outcome: 'done' | 'failed'; readonly reason: string }

export interface Advanced {
  readonly state: SchedulerState
  readonly commands: readonly Command[]
}
