/** @file Between the records of the port and the rows of the tables. Pure. */
import type { Selectable } from 'kysely'
import { callId, executionId, groupId, queryId } from '../../../core/ids.ts'
import type { AssistantItem, FinishReason, Item, Usage } from '../../../core/items.ts'
import type { CheckpointRow, ExecutionRow, GroupRow, LeafRow, StepRow } from '../../../ports/store.ts'
import type { CallRecord, TreeNode } from '../../../trajectory/node.ts'
import { toBlob, toFloat32, toInt32 } from './blobs.ts'
import type { LedgerTables } from './schema.ts'

type Row<Table extends keyof LedgerTables> = Selectable<LedgerTables[Table]>
type Written<Table extends keyof LedgerTables> = Omit<Row<Table>, 'ordinal'>

export function groupToRow(group: GroupRow): Written<'groups'> {
  return {
    group_id: group.groupId,
    query_id: group.queryId,
    task_name: group.taskName,
    dispatch_version: group.dispatchVersion,
    burst: group.burst,
    state: group.state,
    consumed_step: group.consumedStep ?? null,
  }
}

export function groupFromRow(row: Row<'groups'>): GroupRow {
  return {
    groupId: groupId(row.group_id),
    queryId: queryId(row.query_id),
    taskName: row.task_name,
    dispatchVersion: row.dispatch_version,
    burst: row.burst,
    state: row.state as GroupRow['state'],
    consumedStep: row.consumed_step ?? undefined,
  }
}

export function executionToRow(execution: ExecutionRow): Written<'executions'> {
  return {
    execution_id: execution.executionId,
    group_id: execution.groupId,
    member: execution.member,
    attempt: execution.attempt,
    state: execution.state,
    outcome: execution.outcome ?? null,
    reward: execution.reward ?? null,
    parts: numbersToJson(execution.parts),
    error_code: execution.errorCode ?? null,
    error_message: execution.errorMessage === undefined ? null : JSON.stringify(execution.errorMessage),
    started_at_ms: execution.startedAtMs ?? null,
    ended_at_ms: execution.endedAtMs ?? null,
  }
}

export function executionFromRow(row: Row<'executions'>): ExecutionRow {
  return {
    executionId: executionId(row.execution_id),
    groupId: groupId(row.group_id),
    member: row.member,
    attempt: row.attempt,
    state: row.state as ExecutionRow['state'],
    outcome: (row.outcome ?? undefined) as ExecutionRow['outcome'],
    reward: row.reward ?? undefined,
    parts: numbersFromJson(row.parts),
    errorCode: row.error_code ?? undefined,
    errorMessage: row.error_message === null ? undefined : (JSON.parse(row.error_message) as string),
    startedAtMs: row.started_at_ms ?? undefined,
    endedAtMs: row.ended_at_ms ?? undefined,
  }
}

export function callToRow(record: CallRecord): Written<'calls'> {
  return {
    call_id: record.callId,
    execution_id: record.executionId,
    sequence: record.sequence,
    dialect: record.dialect,
    thread: JSON.stringify(record.thread),
    role: record.role,
    request_hash: record.requestHash,
    usage: JSON.stringify(record.usage),
    started_at_ms: record.startedAtMs,
    ended_at_ms: record.endedAtMs,
    moves: record.moves,
  }
}

export function callFromRow(row: Row<'calls'>, nodes: readonly TreeNode[]): CallRecord {
  return {
    callId: callId(row.call_id),
    executionId: executionId(row.execution_id),
    sequence: row.sequence,
    dialect: row.dialect,
    thread: JSON.parse(row.thread) as string,
    role: row.role as CallRecord['role'],
    requestHash: row.request_hash,
    nodes,
    usage: JSON.parse(row.usage) as Usage,
    startedAtMs: row.started_at_ms,
    endedAtMs: row.ended_at_ms,
    moves: row.moves,
  }
}

export function nodeToRow(record: CallRecord, node: TreeNode): Written<'nodes'> {
  const isPolicy = node.provenance === 'policy'
  return {
    execution_id: record.executionId,
    node_id: node.id,
    parent: node.parent,
    call_id: record.callId,
    provenance: node.provenance,
    content: JSON.stringify(isPolicy ? node.turn : node.items),
    token_ids: toBlob(node.tokenIds),
    behavior_logprobs: isPolicy ? toBlob(node.behaviorLogprobs) : null,
    policy_versions: isPolicy ? toBlob(node.policyVersions) : null,
    finish_reason: isPolicy ? node.finishReason : null,
    status: isPolicy ? node.status : null,
  }
}

/** The driver hands out BLOBs as ArrayBuffers. */
const blob = (value: Uint8Array | null): ArrayBuffer => (value ?? new Uint8Array()) as unknown as ArrayBuffer

export function nodeFromRow(row: Row<'nodes'>): TreeNode {
  const shared = { id: row.node_id, parent: row.parent, tokenIds: toInt32(blob(row.token_ids)) }
  if (row.provenance === 'harness') {
    return { ...shared, provenance: 'harness', items: JSON.parse(row.content) as Item[] }
  }
  return {
    ...shared,
    provenance: 'policy',
    callId: callId(row.call_id),
    turn: JSON.parse(row.content) as AssistantItem,
    finishReason: row.finish_reason as FinishReason,
    behaviorLogprobs: toFloat32(blob(row.behavior_logprobs)),
    policyVersions: toInt32(blob(row.policy_versions)),
    status: row.status as 'committed' | 'aborted' | 'orphan',
  }
}

export function leafToRow(leaf: LeafRow): Written<'leaves'> {
  return {
    execution_id: leaf.executionId,
    leaf: leaf.leaf,
    role: leaf.role,
    fate: leaf.fate,
    policy_tokens: leaf.policyTokens,
    trained_tokens: leaf.trainedTokens,
  }
}

export function leafFromRow(row: Row<'leaves'>): LeafRow {
  return {
    executionId: executionId(row.execution_id),
    leaf: row.leaf,
    role: row.role as LeafRow['role'],
    fate: row.fate as LeafRow['fate'],
    policyTokens: row.policy_tokens,
    trainedTokens: row.trained_tokens,
  }
}

export function stepToRow(step: StepRow): Written<'steps'> {
  return {
    step: step.step,
    burst: step.burst,
    groups: JSON.stringify(step.groups),
    metrics: numbersToJson(step.metrics),
  }
}

export function stepFromRow(row: Row<'steps'>): StepRow {
  return {
    step: row.step,
    burst: row.burst,
    groups: (JSON.parse(row.groups) as string[]).map(groupId),
    metrics: numbersFromJson(row.metrics),
  }
}

export function checkpointToRow(checkpoint: CheckpointRow): Written<'checkpoints'> {
  return {
    step: checkpoint.step,
    policy_version: checkpoint.policyVersion,
    burst: checkpoint.burst,
    folder: checkpoint.folder,
  }
}

export function checkpointFromRow(row: Row<'checkpoints'>): CheckpointRow {
  return { step: row.step, policyVersion: row.policy_version, burst: row.burst, folder: row.folder }
}

/** JSON has no NaN or infinities: they travel as strings. */
function numbersToJson(numbers: Readonly<Record<string, number>>): string {
  return JSON.stringify(numbers, (_key, value: unknown) =>
    typeof value === 'number' && !Number.isFinite(value) ? String(value) : value,
  )
}

function numbersFromJson(text: string): Readonly<Record<string, number>> {
  const parsed = JSON.parse(text) as Record<string, number | string>
  return Object.fromEntries(Object.entries(parsed).map(([key, value]) => [key, Number(value)]))
}
