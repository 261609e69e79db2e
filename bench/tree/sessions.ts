/**
 * @file Recorded sessions as paths to train, in the three forms that trainers use, for one execution or a group.
 *
 * A recording is replayed through the real gateway and admitted as a training step would admit it. Its tokens are bytes
 * of the original texts. For timing they are thinned: every `chunk` bytes of a node become one id, so that all lengths
 * keep their proportions.
 */
import { replayRecording } from '../../src/cli/compose/replay-session.ts'
import { seededRng } from '../../src/core/rng.ts'
import { byteChatCodec } from '../../src/recording/byte-chat-codec.ts'
import { readRecording } from '../../src/recording/files.ts'
import { admit } from '../../src/trajectory/admission.ts'
import type { NodeId, PolicyNode, TreeNode } from '../../src/trajectory/node.ts'
import { type ExecutionTree, ROOT } from '../../src/trajectory/tree.ts'
import type { PackExecution, PackSequence } from '../../src/training/forest.ts'

/** A root-to-node path and the policy nodes on it that carry loss. */
interface Row {
  readonly path: readonly TreeNode[]
  readonly trained: ReadonlySet<NodeId>
}

export interface Session {
  /** One row for each admitted leaf; a turn shared by two leaves carries loss in one of them. */
  readonly leaves: readonly Row[]
  /** One row for each model call, prompt and answer; the answer carries the loss. */
  readonly calls: readonly Row[]
  /** Nodes that every execution of the same task has: nothing the policy said can have changed them. */
  readonly common: ReadonlySet<NodeId>
}

export interface Scale {
  /** Bytes that become one token. */
  readonly chunk: number
  readonly vocabSize: number
}

/** @throws Error when the replay differs from the recording. */
export async function readSession(folder: string): Promise<Session> {
  const replayed = await replayRecording(readRecording(folder), { codec: byteChatCodec(), isOwnTokenizer: true })
  const { tree, wrong, differences } = replayed
  if (wrong.length + differences.length > 0) throw new Error(`${folder} does not replay: ${differences.join('; ')}`)
  const { trajectories } = admit(tree, { jMax: Infinity, rng: seededRng(0) })
  const leaves = trajectories.map(({ nodes, lossMask }): Row => ({
    path: nodes,
    trained: trainedNodes(nodes, lossMask),
  }))
  const trained = new Set(leaves.flatMap((row) => [...row.trained]))
  const calls = tree
    .nodes()
    .filter((node) => trained.has(node.id))
    .map((node): Row => ({ path: tree.pathNodes(node.id), trained: new Set([node.id]) }))
  return { leaves, calls, common: commonNodes(tree) }
}

function trainedNodes(nodes: readonly TreeNode[], lossMask: Uint8Array): ReadonlySet<NodeId> {
  const trained = new Set<NodeId>()
  let at = 0
  for (const node of nodes) {
    const end = at + node.tokenIds.length
    if (lossMask.subarray(at, end).includes(1)) trained.add(node.id)
    at = end
  }
  return trained
}

/**
 * The prompt of the session's first call, and tools and system texts at the beginning of any context. The first message
 * of a sub-agent, a summary and all that follows a turn may depend on what the policy said, and count as different.
 */
function commonNodes(tree: ExecutionTree): ReadonlySet<NodeId> {
  const first = tree.calls()[0]?.node ?? ROOT
  const common = new Set<NodeId>([ROOT, ...tree.pathNodes(first).map((node) => node.id)])
  common.delete(first)
  for (const node of tree.nodes()) {
    if (node.provenance !== 'harness' || !common.has(node.parent) || node.items.length === 0) continue
    if (node.items.every(({ kind }) => kind === 'tools' || kind === 'system')) common.add(node.id)
  }
  return common
}

type Form = 'leaves' | 'calls'

/** Rows of `members` executions of the session's task, which differ from the first turn on. */
export function group(session: Session, form: Form, members: number, scale: Scale): readonly PackExecution[] {
  const own = Array.from({ length: members }, (_, member) => ({ session, salt: member }))
  return executions(own, form, scale)
}

/** Rows of sessions of one task that were recorded one by one. */
export function recordedGroup(sessions: readonly Session[], form: Form, scale: Scale): readonly PackExecution[] {
  return executions(
    sessions.map((session) => ({ session, salt: 0 })),
    form,
    scale,
  )
}

interface Member {
  readonly session: Session
  /** Makes what is not common differ from the same text of members with another one. */
  readonly salt: number
}

function executions(members: readonly Member[], form: Form, scale: Scale): readonly PackExecution[] {
  const count = members.length
  return members.map(({ session, salt }, i) => {
    const targets = session.calls.reduce((sum, { trained, path }) => sum + targetsOf(path, trained, scale), 0)
    return {
      key: `member ${i}`,
      // Group-relative, never 0: half of the executions were better than the mean.
      advantage: count === 1 ? 1 : (2 * i + 1 - count) / count,
      tokenWeight: 1 / (targets * count),
      sequences: session[form].map((row) => sequence(row, session.common, salt, scale)),
    }
  })
}

function targetsOf(path: readonly TreeNode[], trained: ReadonlySet<NodeId>, { chunk }: Scale): number {
  const nodes = path.filter((node) => trained.has(node.id))
  return nodes.reduce((sum, node) => sum + Math.ceil(node.tokenIds.length / chunk), 0)
}

function sequence(row: Row, common: ReadonlySet<NodeId>, salt: number, scale: Scale): PackSequence {
  const tokenIds: number[] = []
  const mask: number[] = []
  const logprobs: number[] = []
  for (const node of row.path) {
    const ids = thinned(node, common.has(node.id) ? 0 : salt, scale)
    const bit = row.trained.has(node.id) ? 1 : 0
    tokenIds.push(...ids)
    for (const id of ids) {
      mask.push(bit)
      // Near the log-prob of a fresh model, so that ratios lie within and beyond the clip.
      logprobs.push(-Math.log(scale.vocabSize) + ((id % 16) - 7.5) / 20)
    }
  }
  return {
    tokenIds: Int32Array.from(tokenIds),
    targetMask: Uint8Array.from(mask),
    behaviorLogprobs: Float32Array.from(logprobs),
    policyVersions: new Int32Array(tokenIds.length),
  }
}

/** One id for every `chunk` tokens: equal texts of one member equal ids. FNV-1a. */
function thinned({ tokenIds }: TreeNode | PolicyNode, salt: number, { chunk, vocabSize }: Scale): readonly number[] {
  const ids: number[] = []
  for (let from = 0; from < tokenIds.length; from += chunk) {
    let hash = 0x811c9dc5 ^ salt
    for (const id of tokenIds.subarray(from, from + chunk)) hash = Math.imul(hash ^ id, 0x01000193)
    ids.push(((hash ^ (hash >>> 15)) >>> 0) % vocabSize)
  }
  return ids
}
