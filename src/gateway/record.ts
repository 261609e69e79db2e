/** @file Turns a finished call into its record, and its record into nodes of the tree. */
import type { ExecutionId } from '../core/ids.ts'
import type { FinishReason, Usage } from '../core/items.ts'
import { sameContent } from '../trajectory/canonical.ts'
import type { CallRecord, HarnessNode, NodeId, PolicyNode } from '../trajectory/node.ts'
import type { ExecutionTree } from '../trajectory/tree.ts'
import type { ModelCall } from './model-call.ts'
import type { BlockDraft, Prompt } from './prompt.ts'

export interface CallEnd {
  readonly status: 'committed' | 'aborted'
  readonly finishReason: FinishReason
  readonly usage: Usage
  readonly endedAtMs: number
  readonly moves: number
}

/** Commits the call to the tree at once, so that no other call can take its node ids, and returns the record. */
export function commitCall(tree: ExecutionTree, executionId: ExecutionId, call: ModelCall, end: CallEnd): CallRecord {
  const { callId, dialect, thread, role, requestHash, startedAtMs, prompt } = call.facts
  const { status, finishReason, usage, endedAtMs, moves } = end
  const { parent, created } = harnessNodes(tree, prompt)
  const policy: PolicyNode = {
    id: tree.nextNodeId + created.length,
    parent,
    provenance: 'policy',
    callId,
    turn: call.turn,
    finishReason,
    tokenIds: Int32Array.from(call.sampled.tokenIds),
    behaviorLogprobs: Float32Array.from(call.sampled.logprobs),
    policyVersions: Int32Array.from(call.sampled.policyVersions),
    status,
  }
  const record: CallRecord = {
    callId,
    executionId,
    sequence: tree.nextSequence,
    dialect,
    thread,
    role,
    requestHash,
    nodes: [...created, policy],
    usage,
    startedAtMs,
    endedAtMs,
    moves,
  }
  tree.commit(record)
  return record
}

/** True when root to generated leaf says exactly the ids the engine saw and sampled. */
export function isPathExact(tree: ExecutionTree, leaf: NodeId, call: ModelCall): boolean {
  const path = tree.pathTokenIds(leaf)
  const prompt = call.facts.prompt.tokenIds
  const sampled = Int32Array.from(call.sampled.tokenIds)
  return (
    bytesOf(path.subarray(0, prompt.length)).equals(bytesOf(prompt)) &&
    bytesOf(path.subarray(prompt.length)).equals(bytesOf(sampled))
  )
}

function bytesOf(ids: Int32Array): Buffer {
  return Buffer.from(ids.buffer, ids.byteOffset, ids.byteLength)
}

/** Blocks that another call committed in the meantime are shared; the rest become nodes. */
function harnessNodes(
  tree: ExecutionTree,
  prompt: Prompt,
): { readonly parent: NodeId; readonly created: readonly HarnessNode[] } {
  let parent = prompt.parent
  const created: HarnessNode[] = []
  for (const block of prompt.blocks) {
    const shared = created.length === 0 ? sharedChild(tree, parent, block) : undefined
    if (shared !== undefined) {
      parent = shared
      continue
    }
    const id = tree.nextNodeId + created.length
    created.push({ id, parent, provenance: 'harness', items: block.items, tokenIds: block.tokenIds })
    parent = id
  }
  return { parent, created }
}

/** Equal ids are not enough: a later request finds the node by what its items say. */
function sharedChild(tree: ExecutionTree, parent: NodeId, block: BlockDraft): NodeId | undefined {
  const id = tree.findHarnessChild(parent, block.tokenIds)
  const node = id === undefined ? undefined : tree.node(id)
  if (node?.provenance !== 'harness' || node.items.length !== block.items.length) return undefined
  return node.items.every((item, i) => sameContent(item, block.items[i] ?? item)) ? id : undefined
}
