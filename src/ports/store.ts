/** @file The durable record of a run. The source of truth after any kill. */
import type { ExecutionId, GroupId, QueryId } from '../core/ids.ts'
import type { CallRecord, LeafRole, NodeId } from '../trajectory/node.ts'
import type { RecordSink } from './forwarding.ts'

/** Outcomes stay apart: a failure is never a reward 0 in disguise. */
export type ExecutionOutcome =
  | 'finished'
  | 'harness-timeout'
  /** Ended early because its group went on without it; scored like a timeout. */
  | 'cut'
  | 'harness-failed'
  | 'overall-timeout'
  | 'evaluation-failed'
  | 'infrastructure-failed'
  | 'interrupted'

export type ExecutionState = 'queued' | 'running' | 'evaluating' | 'scored' | 'excluded'

export interface GroupRow {
  readonly groupId: GroupId
  readonly queryId: QueryId
  readonly taskName: string
  /** Policy version at dispatch. */
  readonly dispatchVersion: number
  readonly burst: number
  /** `evaluation` groups are never trained. */
  readonly state: 'dispatched' | 'ready' | 'consumed' | 'excluded' | 'evaluation'
  /** The training step that consumed it; set together with the checkpoint that holds its effect. */
  readonly consumedStep: number | undefined
}

export interface ExecutionRow {
  readonly executionId: ExecutionId
  readonly groupId: GroupId
  /** 0..N-1 within the group. */
  readonly member: number
  /** Counts restarts after an interruption or an infrastructure failure, from 0. */
  readonly attempt: number
  readonly state: ExecutionState
  readonly outcome: ExecutionOutcome | undefined
  readonly reward: number | undefined
  readonly parts: Readonly<Record<string, number>>
  readonly errorCode: string | undefined
  readonly errorMessage: string | undefined
  readonly startedAtMs: number | undefined
  readonly endedAtMs: number | undefined
}

/** Why a leaf was trained or not. */
export type LeafFate = 'picked' | 'masked' | 'over-budget' | 'side' | 'orphan' | 'aborted' | 'too-long' | 'no-gradient'

export interface LeafRow {
  readonly executionId: ExecutionId
  readonly leaf: NodeId
  readonly role: LeafRole
  readonly fate: LeafFate
  /** Policy tokens on its path, and those that carry loss through it. [tokens] */
  readonly policyTokens: number
  readonly trainedTokens: number
}

export interface StepRow {
  /** Optimizer steps done after this one, from 1. */
  readonly step: number
  readonly burst: number
  readonly groups: readonly GroupId[]
  /** Flat numbers only: reward, loss, gradient norm, staleness, seconds per phase ... */
  readonly metrics: Readonly<Record<string, number>>
}

export interface CheckpointRow {
  readonly step: number
  readonly policyVersion: number
  readonly burst: number
  /** Relative to the run folder. */
  readonly folder: string
}

export interface Store extends RecordSink {
  /** Free-form facts of the run: config hash, seed, cursor of the query order ... */
  setMeta(key: string, value: string): void
  getMeta(key: string): string | undefined
  putGroup(row: GroupRow, members: readonly ExecutionRow[]): void
  setGroupState(groupId: GroupId, state: GroupRow['state']): void
  putExecution(row: ExecutionRow): void
  groups(): readonly GroupRow[]
  executions(groupId?: GroupId): readonly ExecutionRow[]
  execution(executionId: ExecutionId): ExecutionRow | undefined
  /** Calls of one execution in commit order. */
  calls(executionId: ExecutionId): readonly CallRecord[]
  putLeaves(executionId: ExecutionId, leaves: readonly LeafRow[]): void
  leaves(executionId: ExecutionId): readonly LeafRow[]
  /**
   * One transaction: the steps since the last checkpoint, their groups consumed, and the checkpoint itself.
   * After a kill a group is either consumed by weights that exist, or not consumed.
   */
  commitCheckpoint(checkpoint: CheckpointRow, steps: readonly StepRow[]): void
  steps(): readonly StepRow[]
  latestCheckpoint(): CheckpointRow | undefined
  close(): void
}
