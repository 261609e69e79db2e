/** @file What one node of an execution's tree holds. The tree itself is tree.ts. */
import type { CallId, ExecutionId } from '../core/ids.ts'
import type { AssistantItem, FinishReason, Item, Usage } from '../core/items.ts'

/** Index of a node within its execution's tree; 0 is the empty root. Dense, in commit order. */
export type NodeId = number

export type LeafRole = 'main' | 'main-summary' | 'sub-agent' | 'sub-agent-summary' | 'side'

/**
 * How a generated node ended: `committed` answered the harness, `aborted` lost its
 * client before it was complete, `orphan` was answered but its answer was never used
 * (a retry took its place). Only `committed` nodes are trained by default.
 */
export type CallStatus = 'committed' | 'aborted' | 'orphan'

/** Tokens that the harness wrote, glue of the chat template included. They are never trained. */
export interface HarnessNode {
  readonly id: NodeId
  readonly parent: NodeId
  readonly provenance: 'harness'
  /**
   * The items this node adds; empty for the generation prompt. An assistant item here is a turn the harness
   * claims but the policy never sampled (rewritten or imported history): its tokens are never trained.
   */
  readonly items: readonly Item[]
  /** [T] ids this node adds to its parent's path, glue of the chat template included. */
  readonly tokenIds: Int32Array
}

/** Tokens that the policy sampled: the only ones that can be trained. */
export interface PolicyNode {
  readonly id: NodeId
  readonly parent: NodeId
  readonly provenance: 'policy'
  readonly callId: CallId
  /** What the harness was given, parsed from the tokens. */
  readonly turn: AssistantItem
  readonly finishReason: FinishReason
  /** [T] sampled ids, the end-of-turn token included when it was sampled. */
  readonly tokenIds: Int32Array
  /** [T] log-probs under the policy that sampled each token, nats. NaN marks a token without evidence: it is never trained. */
  readonly behaviorLogprobs: Float32Array
  /** [T] policy version that sampled each token. */
  readonly policyVersions: Int32Array
  readonly status: CallStatus
}

export type TreeNode = HarnessNode | PolicyNode

/**
 * One model call, as it is recorded durably before the harness sees its end.
 * `nodes` are the nodes this call added, parents first; the last one is generated.
 */
export interface CallRecord {
  readonly callId: CallId
  readonly executionId: ExecutionId
  /** Commit order within the execution, from 0. */
  readonly sequence: number
  readonly dialect: string
  /** Thread by header signal, or '' when the harness sends none. */
  readonly thread: string
  /** Role by the harness profile; the leaf under this call inherits it. */
  readonly role: LeafRole
  /** Hash of the canonical request, for retry detection. */
  readonly requestHash: string
  readonly nodes: readonly TreeNode[]
  readonly usage: Usage
  /** ms since the Unix epoch. */
  readonly startedAtMs: number
  readonly endedAtMs: number
  /** How often the call moved to another engine while it ran. */
  readonly moves: number
}
