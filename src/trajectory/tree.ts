/**
 * @file The prefix-shared tree of one execution: every context the policy saw, each token once.
 *
 * Commits are synchronous and validated whole before anything changes. Matching is linear in the
 * request: children are found through canonical keys, served tool calls through their ids.
 */
import { invariant } from '../core/errors.ts'
import type { CallId, ExecutionId } from '../core/ids.ts'
import type { Item } from '../core/items.ts'
import { itemKey, sameContent } from './canonical.ts'
import { isEcho } from './echo.ts'
import type { CallRecord, NodeId, PolicyNode, TreeNode } from './node.ts'

/** What stands before the next block on a path. The same words as the codec's block contexts. */
export type PathContext = 'start' | 'harness' | 'turn-closed' | 'turn-open'

/** A committed call; its nodes live in the tree. */
export interface TreeCall extends Omit<CallRecord, 'nodes'> {
  /** The generated node of this call. */
  readonly node: NodeId
}

export interface TreeMatch {
  readonly parent: NodeId
  readonly matchedItems: number
}

export const ROOT: NodeId = 0

/** How the children of one node are found. Most nodes have one child. */
interface ChildIndex {
  readonly all: NodeId[]
  /** Harness children by the joined keys of their items. */
  readonly blocks: Map<string, NodeId[]>
  /** Distinct item counts of the harness children. [items] */
  readonly blockLengths: Set<number>
  /** Harness children without items (generation prompts): a match passes through them. */
  readonly prompts: NodeId[]
  /** Generated children by the key of their turn. */
  readonly turns: Map<string, NodeId[]>
}

interface Candidate {
  readonly node: NodeId
  readonly at: number
  /** Aborted and orphan turns on the path. */
  readonly doubtful: number
}

function emptyIndex(): ChildIndex {
  return { all: [], blocks: new Map(), blockLengths: new Set(), prompts: [], turns: new Map() }
}

function pushTo(map: Map<string, NodeId[]>, key: string, id: NodeId): void {
  const held = map.get(key)
  if (held === undefined) map.set(key, [id])
  else held.push(id)
}

function sameIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i])
}

export class ExecutionTree {
  readonly executionId: ExecutionId
  readonly #nodes: TreeNode[]
  readonly #children: ChildIndex[] = [emptyIndex()]
  readonly #calls: TreeCall[] = []
  readonly #callIndex = new Map<CallId, number>()
  /** Index into #calls by generated node. */
  readonly #callOfNode = new Map<NodeId, number>()
  readonly #servedToolCalls = new Map<string, NodeId[]>()
  /** Tokens from the root to each node's end. [tokens] */
  readonly #ends: number[] = [0]

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
    return this.#nodes.reduce((sum, node) => sum + node.tokenIds.length, 0)
  }

  node(id: NodeId): TreeNode | undefined {
    return this.#nodes[id]
  }

  /** Every node in commit order, the empty root first. */
  nodes(): readonly TreeNode[] {
    return this.#nodes
  }

  childrenOf(id: NodeId): readonly NodeId[] {
    return this.#children[id]?.all ?? []
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
    return this.#servedToolCalls.get(toolCallId) ?? []
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
    this.#require(id)
    return this.#ends[id] ?? 0
  }

  /** [pathLength] exactly the ids an engine saw for a context that ends in `id`. */
  pathTokenIds(id: NodeId): Int32Array {
    const out = new Int32Array(this.pathLength(id))
    for (let at = id; at !== ROOT; at = this.#require(at).parent) {
      const { tokenIds } = this.#require(at)
      out.set(tokenIds, (this.#ends[at] ?? 0) - tokenIds.length)
    }
    return out
  }

  /** What a block that follows `id` must assume. A turn that ended by length or lost its client is still open. */
  contextOf(id: NodeId): PathContext {
    if (id === ROOT) return 'start'
    const node = this.#require(id)
    if (node.provenance === 'policy') {
      return node.finishReason === 'length' || node.status === 'aborted' ? 'turn-open' : 'turn-closed'
    }
    // An imported turn is encoded with its end-of-turn token, like a sampled one.
    return node.items.at(-1)?.kind === 'assistant' ? 'turn-closed' : 'harness'
  }

  /** A harness child with exactly these tokens, so that equal blocks of concurrent calls become one node. */
  findHarnessChild(parent: NodeId, tokenIds: Int32Array): NodeId | undefined {
    return this.childrenOf(parent).find((id) => {
      const child = this.#require(id)
      return child.provenance === 'harness' && sameIds(child.tokenIds, tokenIds)
    })
  }

  /**
   * The deepest node whose path says exactly `items[0..matchedItems)`. Among equally deep ones, the one
   * with fewer aborted and orphan turns on its path, then the latest. Never a generation prompt.
   */
  match(items: readonly Item[]): TreeMatch {
    const keys = items.map(itemKey)
    let best: Candidate = { node: ROOT, at: 0, doubtful: 0 }
    const open: Candidate[] = [best]
    for (let here = open.pop(); here !== undefined; here = open.pop()) {
      if (this.#beats(here, best)) best = here
      this.#continue(items, keys, here, open)
    }
    return { parent: best.node, matchedItems: best.at }
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
    if (this.childrenOf(call.node).length > 0) return
    this.#setStatus(call.node, 'committed', 'orphan')
  }

  #require(id: NodeId): TreeNode {
    const node = this.#nodes[id]
    invariant(node !== undefined, `node ${id} exists in the tree of execution ${this.executionId}`)
    return node
  }

  #setStatus(id: NodeId, from: PolicyNode['status'], to: PolicyNode['status']): void {
    const node = this.#require(id)
    if (node.provenance === 'policy' && node.status === from) this.#nodes[id] = { ...node, status: to }
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

  #add(node: TreeNode): void {
    const index = this.#children[node.parent]
    invariant(index !== undefined, `node ${node.parent} has a child index`)
    // A continuation proves that the answer was used.
    this.#setStatus(node.parent, 'orphan', 'committed')
    this.#nodes.push(node)
    this.#children.push(emptyIndex())
    this.#ends.push((this.#ends[node.parent] ?? 0) + node.tokenIds.length)
    index.all.push(node.id)
    if (node.provenance === 'policy') {
      pushTo(index.turns, itemKey(node.turn), node.id)
      for (const call of node.turn.toolCalls) pushTo(this.#servedToolCalls, call.id, node.id)
    } else if (node.items.length === 0) {
      index.prompts.push(node.id)
    } else {
      index.blockLengths.add(node.items.length)
      pushTo(index.blocks, node.items.map(itemKey).join(), node.id)
    }
  }

  #beats(a: Candidate, b: Candidate): boolean {
    const node = this.#require(a.node)
    if (node.provenance === 'harness' && node.items.length === 0) return false
    if (a.at !== b.at) return a.at > b.at
    if (a.doubtful !== b.doubtful) return a.doubtful < b.doubtful
    return a.node > b.node
  }

  /** Pushes every child of `here` that agrees with what comes next. */
  #continue(items: readonly Item[], keys: readonly string[], here: Candidate, open: Candidate[]): void {
    const index = this.#children[here.node]
    if (index === undefined || here.at >= items.length) return
    const { at, doubtful } = here
    for (const node of index.prompts) open.push({ node, at, doubtful })
    for (const length of index.blockLengths) {
      const end = at + length
      if (end > items.length) continue
      for (const node of index.blocks.get(keys.slice(at, end).join()) ?? []) {
        if (this.#blockEquals(node, items, at)) open.push({ node, at: end, doubtful })
      }
    }
    for (const node of this.#turnsLike(here.node, index, items, keys, at)) {
      open.push({ node: node.id, at: at + 1, doubtful: doubtful + (node.status === 'committed' ? 0 : 1) })
    }
  }

  #blockEquals(id: NodeId, items: readonly Item[], at: number): boolean {
    const node = this.#require(id)
    if (node.provenance !== 'harness') return false
    return node.items.every((item, i) => {
      const other = items[at + i]
      return other !== undefined && sameContent(item, other)
    })
  }

  /** Generated children that the assistant item at `at` echoes. A known call id outweighs equal words. */
  #turnsLike(
    parent: NodeId,
    index: ChildIndex,
    items: readonly Item[],
    keys: readonly string[],
    at: number,
  ): PolicyNode[] {
    const item = items[at]
    if (item?.kind !== 'assistant' || index.turns.size === 0) return []
    const byId = new Set(item.toolCalls.flatMap((call) => this.nodesOfToolCall(call.id)))
    const known = [...byId].filter((id) => this.#require(id).parent === parent)
    const candidates = known.length > 0 ? known : (index.turns.get(keys[at] ?? '') ?? [])
    return candidates
      .map((id) => this.#require(id))
      .filter((node): node is PolicyNode => node.provenance === 'policy' && isEcho(node.turn, item))
  }
}
