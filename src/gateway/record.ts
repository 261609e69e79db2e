/** @file Turns a finished call into its record and into nodes of the tree. */
import type { ExecutionId } from '../core/ids.ts'
import type { FinishReason, Usage } from '../core/items.ts'
import type { CallRecord, HarnessNode, NodeId, PolicyNode } from '../trajectory/node.ts'
import type { PathTree } from '../trajectory/path-tree.ts'
import { pathContent } from '../trajectory/tree.ts'
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
export function commitCall(tree: PathTree, executionId: ExecutionId, call: ModelCall, end: CallEnd): CallRecord {
  const { callId, dialect, thread, role, requestHash, startedAtMs } = call.facts
  const { status, finishReason, usage, endedAtMs, moves } = end
  const sequence = tree.nextSequence
  const { parent, created } = addBlocks(tree, call.prompt)
  const policy: Omit<PolicyNode, 'id'> = {
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
  const id = tree.add(parent, policy.tokenIds, pathContent(policy))
  return {
    callId,
    executionId,
    sequence,
    dialect,
    thread,
    role,
    requestHash,
    nodes: [...created, { id, ...policy }],
    usage,
    startedAtMs,
    endedAtMs,
    moves,
  }
}

/** Contexts up to this length are checked on every call, longer ones on every so many. [tokens], [calls] */
const [CHECKED_TOKENS, CHECKED_EVERY] = [65_536, 16]

/** Whether this call's path is compared with what the engine saw: a long one costs more than the call's own work. */
export function isChecked(tree: PathTree, leaf: NodeId): boolean {
  return tree.pathLength(leaf) <= CHECKED_TOKENS || tree.nextSequence % CHECKED_EVERY === 0
}

/** True when root to generated leaf says exactly the ids the engine saw and sampled. */
export function isPathExact(tree: PathTree, leaf: NodeId, call: ModelCall): boolean {
  const path = tree.pathTokenIds(leaf)
  const prompt = call.prompt.tokenIds
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
function addBlocks(
  tree: PathTree,
  prompt: Prompt,
): { readonly parent: NodeId; readonly created: readonly HarnessNode[] } {
  let parent = prompt.parent
  const created: HarnessNode[] = []
  for (const block of prompt.blocks) {
    // Equal ids are not enough: a later request finds the node by what its items say.
    const shared = created.length === 0 ? tree.findBlock(parent, block.tokenIds, block.digests) : undefined
    if (shared === undefined) {
      const id = addBlock(tree, parent, block)
      created.push({ id, parent, provenance: 'harness', items: block.items, tokenIds: block.tokenIds })
      parent = id
    } else parent = shared
  }
  return { parent, created }
}

function addBlock(tree: PathTree, parent: NodeId, { items, digests, tokenIds }: BlockDraft): NodeId {
  return tree.add(parent, tokenIds, { kind: 'block', digests, endsInTurn: items.at(-1)?.kind === 'assistant' })
}
