/**
 * @file The prefix-shared tree of one execution: every context the policy saw, each token once, with its records.
 *
 * Commits are synchronous and validated whole before anything changes. Finding contexts is path-tree.ts.
 */
import { invariant } from '../core/errors.ts'
import type { CallId, ExecutionId } from '../core/ids.ts'
import type { Item } from '../core/items.ts'
import { itemDigest } from './canonical.ts'
import type { CallRecord, HarnessNode, NodeId, PolicyNode, TreeNode } from './node.ts'
import { itemFacts, PathTree, ROOT } from './path-tree.ts'
import type { BlockContent, PathContext, TreeMatch, TurnContent } from './path-tree.ts'

export { ROOT } from './path-tree.ts'
export type { PathContext, TreeMatch } from './path-tree.ts'

/** A committed call; its nodes live in the tree. */
export interface TreeCall extends Omit<CallRecord, 'nodes'> {
  /** The generated node of this call. */
  readonly node: NodeId
}

/** What finding contexts needs of a node. */
export function pathContent(node: Omit<HarnessNode, 'id'> | Omit<PolicyNode, 'id'>): BlockContent | TurnContent {
  if (node.provenance === 'harness') {
    const endsInTurn = node.items.at(-1)?.kind === 'assistant'
    return { kind: 'block', digests: node.items.map(itemDigest), endsInTurn }
  }
  const { turn, status, finishReason } = node
  return { kind: 'turn', turn, status, isOpen: finishReason === 'length' || status === 'aborted' }
}

export class ExecutionTree {
  readonly executionId: ExecutionId
  readonly #paths = new PathTree()
  readonly #nodes: TreeNode[]
  readonly #calls: TreeCall[] = []
  readonly #callIndex = new Map<CallId, number>()
  /** Index into #calls by generated node. */
  readonly #callOfNode = new Map<NodeId, number>()

  constructor(executionId: ExecutionId) {
    this.executionId = executionId
    this.#nodes = [{ id: ROOT, parent: ROOT, provenance: 'harness', items: [], tokenIds: new Int32Array(0) }]
  }

  /** Rebuilds the tree from its records in commit order. @throws InvariantError when they do not fit together. */
  static fromRecords(executionId: ExecutionId, records: readonly CallRecord[]): ExecutionTree {
    const tree = new ExecutionTree(executionId)
    for (const record of records) tree.commit(record)
    return tree
  }

  get nextNodeId(): NodeId {
    return this.#nodes.length
  }

  get nextSequence(): number {
    return this.#calls.length
  }

  /** Tokens held, each distinct one once. [tokens] */
  get tokenCount(): number {
    return this.#paths.tokenCount
  }

  node(id: NodeId): TreeNode | undefined {
    return this.#nodes[id]
  }

  /** Every node in commit order, the empty root first. */
  nodes(): readonly TreeNode[] {
    return this.#nodes
  }

  childrenOf(id: NodeId): readonly NodeId[] {
    return this.#paths.childrenOf(id)
  }

  /** Calls in commit order. */
  calls(): readonly TreeCall[] {
    return this.#calls
  }

  call(callId: CallId): TreeCall | undefined {
    const index = this.#callIndex.get(callId)
    return index === undefined ? undefined : this.#calls[index]
  }

  /** The call that generated this node; undefined for harness nodes. */
  callOfNode(id: NodeId): TreeCall | undefined {
    const index = this.#callOfNode.get(id)
    return index === undefined ? undefined : this.#calls[index]
  }

  /** The generated nodes that served a tool call of this id, wherever in the tree they are. */
  nodesOfToolCall(toolCallId: string): readonly NodeId[] {
    return this.#paths.nodesOfToolCall(toolCallId)
  }

  /** Nodes without children, the root excepted. */
  leaves(): readonly NodeId[] {
    return this.#nodes.filter((node) => node.id !== ROOT && this.childrenOf(node.id).length === 0).map((n) => n.id)
  }

  /** From the first node under the root to `id`; empty for the root. */
  pathNodes(id: NodeId): readonly TreeNode[] {
    const path: TreeNode[] = []
    for (let at = id; at !== ROOT; at = this.#require(at).parent) path.push(this.#require(at))
    return path.toReversed()
  }

  /** Length of the path that ends in `id`. [tokens] */
  pathLength(id: NodeId): number {
    return this.#paths.pathLength(id)
  }

  /** [pathLength] exactly the ids an engine saw for a context that ends in `id`. */
  pathTokenIds(id: NodeId): Int32Array {
    return this.#paths.pathTokenIds(id)
  }

  /** What a block that follows `id` must assume. A turn that ended by length or lost its client is still open. */
  contextOf(id: NodeId): PathContext {
    return this.#paths.contextOf(id)
  }

  /** A harness child with exactly these tokens, so that equal blocks of concurrent calls become one node. */
  findHarnessChild(parent: NodeId, tokenIds: Int32Array): NodeId | undefined {
    return this.#paths.findBlock(parent, tokenIds)
  }

  /** As `PathTree.match`. */
  match(items: readonly Item[]): TreeMatch {
    const at = (index: number): Item => {
      const item = items[index]
      invariant(item !== undefined, `item ${index} is among the ${items.length} to match`)
      return item
    }
    return this.#paths.match(
      items.map((item) => itemFacts(item)),
      at,
    )
  }

  /**
   * Adds the nodes of one call.
   * @throws InvariantError when the record does not fit this tree; the tree is then unchanged.
   */
  commit(record: CallRecord): void {
    const generated = this.#check(record)
    for (const node of record.nodes) this.#add(node)
    const { nodes: _, ...call } = record
    this.#callIndex.set(record.callId, this.#calls.length)
    this.#callOfNode.set(generated.id, this.#calls.length)
    this.#calls.push({ ...call, node: generated.id })
  }

  /**
   * Marks an answered call whose answer was never used. A turn that already has a continuation was used,
   * so it stays as it is, also when the records are replayed.
   */
  markOrphan(callId: CallId): void {
    const call = this.call(callId)
    invariant(call !== undefined, `call ${callId} of execution ${this.executionId} is in the tree`)
    this.#paths.markOrphan(call.node)
    this.#copyStatus(call.node)
  }

  #require(id: NodeId): TreeNode {
    const node = this.#nodes[id]
    invariant(node !== undefined, `node ${id} exists in the tree of execution ${this.executionId}`)
    return node
  }

  #copyStatus(id: NodeId): void {
    const node = this.#require(id)
    const status = this.#paths.statusOf(id)
    if (node.provenance === 'policy' && node.status !== status) this.#nodes[id] = { ...node, status }
  }

  #add(node: TreeNode): void {
    this.#paths.add(node.parent, node.tokenIds, pathContent(node))
    this.#nodes.push(node)
    this.#copyStatus(node.parent)
  }

  #check(record: CallRecord): PolicyNode {
    const where = `call ${record.callId} of execution ${this.executionId}`
    invariant(record.executionId === this.executionId, `${where} belongs to it, not to ${record.executionId}`)
    invariant(record.sequence === this.nextSequence, `${where} has sequence ${this.nextSequence}`)
    invariant(!this.#callIndex.has(record.callId), `${where} is committed once`)
    const generated = record.nodes.at(-1)
    invariant(generated?.provenance === 'policy', `${where} ends in a generated node`)
    invariant(generated.callId === record.callId, `${where} generated its last node`)
    record.nodes.forEach((node, i) => {
      invariant(node.id === this.nextNodeId + i, `${where} numbers its nodes from ${this.nextNodeId}`)
      invariant(node.parent >= ROOT && node.parent < node.id, `${where}: parent of node ${node.id} comes before it`)
      invariant(node === generated || node.provenance === 'harness', `${where} generates one node`)
    })
    const { tokenIds, behaviorLogprobs, policyVersions } = generated
    const aligned = behaviorLogprobs.length === tokenIds.length && policyVersions.length === tokenIds.length
    invariant(aligned, `${where} has a log-prob and a version for each token`)
    return generated
  }
}
