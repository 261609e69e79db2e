/**
 * @file The part of an execution's tree that finds and concatenates contexts: token ids, digests, and the turns served.
 *
 * It keeps no text of the harness, so a gateway can hold one for every execution. Matching costs as much as the request
 * has items, not as much as it has text: an echo that was compared once is known by its fingerprint.
 */
import { invariant } from '../core/errors.ts'
import type { AssistantItem, Item } from '../core/items.ts'
import { itemDigest, turnKey } from './canonical.ts'
import { isEcho, servedCallId } from './echo.ts'
import { keepAsGiven } from './id-slabs.ts'
import type { KeepIds } from './id-slabs.ts'
import type { CallStatus, NodeId } from './node.ts'

export const ROOT: NodeId = 0

/** What stands before the next block on a path. The same words as the codec's block contexts. */
export type PathContext = 'start' | 'harness' | 'turn-closed' | 'turn-open'

/** What matching needs to know of an item. The item itself is asked for only when this does not decide. */
export interface ItemFacts {
  readonly kind: Item['kind']
  /** Equal for equal canonical content. */
  readonly digest: string
  /** Equal for equal items only, marks of the dialect included; '' when nobody made one. */
  readonly fingerprint: string
  /** Assistant items: where to look for the turn they echo. */
  readonly turnKey: string
  /** Assistant items: ids of their tool calls. */
  readonly callIds: readonly string[]
}

export interface TreeMatch {
  readonly parent: NodeId
  readonly matchedItems: number
}

/** What the tree is told of a harness node. */
export interface BlockContent {
  readonly kind: 'block'
  /** Of its items in order; empty for a generation prompt. */
  readonly digests: readonly string[]
  /** True when its last item is an imported turn. */
  readonly endsInTurn: boolean
}

/** What the tree is told of a generated node. */
export interface TurnContent {
  readonly kind: 'turn'
  readonly turn: AssistantItem
  /** True when the turn did not end by itself. */
  readonly isOpen: boolean
  readonly status: CallStatus
}

interface PathNode {
  readonly id: NodeId
  readonly parent: NodeId
  readonly tokenIds: Int32Array
  /** Tokens from the root to its end. [tokens] */
  readonly end: number
  readonly content: BlockContent | TurnContent
  readonly turnKey: string
  readonly children: NodeId[]
  status: CallStatus
  /** Fingerprint of the last item found to echo this turn. */
  echo: string
}

interface Candidate {
  readonly node: PathNode
  readonly at: number
  /** Aborted and orphan turns on the path. */
  readonly doubtful: number
}

const NO_CALLS: readonly string[] = []
const EMPTY_BLOCK: BlockContent = { kind: 'block', digests: [], endsInTurn: false }

export function itemFacts(item: Item, fingerprint = ''): ItemFacts {
  const digest = itemDigest(item)
  if (item.kind !== 'assistant') return { kind: item.kind, digest, fingerprint, turnKey: '', callIds: NO_CALLS }
  const callIds = item.toolCalls.length === 0 ? NO_CALLS : item.toolCalls.map((call) => servedCallId(call.id))
  return { kind: item.kind, digest, fingerprint, turnKey: turnKey(item), callIds }
}

export class PathTree {
  readonly #nodes: PathNode[]
  /** Generated nodes by the ids of the tool calls they served. */
  readonly #served = new Map<string, NodeId[]>()
  readonly #keepIds: KeepIds
  #tokenCount = 0
  #turnCount = 0

  /** @param keepIds Holds the ids of all nodes but the first on a path, which executions share. */
  constructor(keepIds: KeepIds = keepAsGiven) {
    this.#keepIds = keepIds
    this.#nodes = [newNode(ROOT, ROOT, new Int32Array(0), 0, EMPTY_BLOCK)]
  }

  get nextNodeId(): NodeId {
    return this.#nodes.length
  }

  /** Generated nodes so far, hence the commit order of the next call. */
  get nextSequence(): number {
    return this.#turnCount
  }

  /** Tokens held, each distinct one once. [tokens] */
  get tokenCount(): number {
    return this.#tokenCount
  }

  childrenOf(id: NodeId): readonly NodeId[] {
    return this.#nodes[id]?.children ?? []
  }

  parentOf(id: NodeId): NodeId {
    return this.#require(id).parent
  }

  /** The generated nodes that served a tool call of this id, wherever in the tree they are. */
  nodesOfToolCall(toolCallId: string): readonly NodeId[] {
    return this.#served.get(toolCallId) ?? []
  }

  /** Length of the path that ends in `id`. [tokens] */
  pathLength(id: NodeId): number {
    return this.#require(id).end
  }

  /** [pathLength] exactly the ids an engine saw for a context that ends in `id`; `room` further ids are left 0. */
  pathTokenIds(id: NodeId, room = 0): Int32Array {
    let node = this.#require(id)
    const out = new Int32Array(node.end + room)
    for (; node.id !== ROOT; node = this.#require(node.parent)) out.set(node.tokenIds, node.end - node.tokenIds.length)
    return out
  }

  /** What a block that follows `id` must assume. A turn that ended by length or lost its client is still open. */
  contextOf(id: NodeId): PathContext {
    if (id === ROOT) return 'start'
    const { content } = this.#require(id)
    if (content.kind === 'turn') return content.isOpen ? 'turn-open' : 'turn-closed'
    // An imported turn is encoded with its end-of-turn token, like a sampled one.
    return content.endsInTurn ? 'turn-closed' : 'harness'
  }

  /** A harness child with exactly these tokens and items, so that equal blocks of concurrent calls become one node. */
  findBlock(parent: NodeId, tokenIds: Int32Array, digests?: readonly string[]): NodeId | undefined {
    return this.childrenOf(parent).find((id) => {
      const { content, tokenIds: held } = this.#require(id)
      if (content.kind !== 'block' || !sameIds(held, tokenIds)) return false
      return digests === undefined || sameDigests(content.digests, digests)
    })
  }

  /** Adds a child of `parent` and returns its id. */
  add(parent: NodeId, tokenIds: Int32Array, content: BlockContent | TurnContent): NodeId {
    const above = this.#require(parent)
    const ids = parent === ROOT ? tokenIds : this.#keepIds(tokenIds)
    const node = newNode(this.#nodes.length, parent, ids, above.end + ids.length, content)
    // A continuation proves that the answer was used.
    if (above.status === 'orphan') above.status = 'committed'
    above.children.push(node.id)
    this.#nodes.push(node)
    this.#tokenCount += tokenIds.length
    if (content.kind === 'turn') {
      this.#turnCount++
      for (const call of content.turn.toolCalls) this.#serve(call.id, node.id)
    }
    return node.id
  }

  statusOf(id: NodeId): CallStatus {
    return this.#require(id).status
  }

  /** Marks a committed turn without a continuation. */
  markOrphan(id: NodeId): void {
    const node = this.#require(id)
    if (node.content.kind === 'turn' && node.status === 'committed' && node.children.length === 0) {
      node.status = 'orphan'
    }
  }

  /**
   * The deepest node whose path says exactly `items[0..matchedItems)`. Among equally deep ones, the one
   * with fewer aborted and orphan turns on its path, then the latest. Never a generation prompt.
   */
  match(facts: readonly ItemFacts[], itemAt: (index: number) => Item): TreeMatch {
    let best: Candidate = { node: this.#require(ROOT), at: 0, doubtful: 0 }
    const open: Candidate[] = [best]
    for (let here = open.pop(); here !== undefined; here = open.pop()) {
      if (beats(here, best)) best = here
      if (here.at < facts.length) this.#continue(facts, itemAt, here, open)
    }
    return { parent: best.node.id, matchedItems: best.at }
  }

  #require(id: NodeId): PathNode {
    const node = this.#nodes[id]
    invariant(node !== undefined, `node ${id} exists in the tree`)
    return node
  }

  #serve(toolCallId: string, node: NodeId): void {
    const held = this.#served.get(toolCallId)
    if (held === undefined) this.#served.set(toolCallId, [node])
    else held.push(node)
  }

  /** Pushes every child of `here` that agrees with what comes next. */
  #continue(facts: readonly ItemFacts[], itemAt: (index: number) => Item, here: Candidate, open: Candidate[]): void {
    const { node, at, doubtful } = here
    let turns: PathNode[] | undefined
    for (const id of node.children) {
      const child = this.#require(id)
      if (child.content.kind === 'turn') (turns ??= []).push(child)
      else if (saysNext(child.content.digests, facts, at)) {
        open.push({ node: child, at: at + child.content.digests.length, doubtful })
      }
    }
    const next = facts[at]
    if (turns === undefined || next?.kind !== 'assistant') return
    for (const turn of this.#turnsLike(node.id, turns, next)) {
      if (!isEchoOf(turn, next, () => itemAt(at))) continue
      open.push({ node: turn, at: at + 1, doubtful: doubtful + (turn.status === 'committed' ? 0 : 1) })
    }
  }

  /** The turns that the item may echo. A known call id outweighs equal words. */
  #turnsLike(parent: NodeId, turns: readonly PathNode[], facts: ItemFacts): readonly PathNode[] {
    const byId = new Set(facts.callIds.flatMap((id) => this.nodesOfToolCall(id)))
    const known = [...byId].map((id) => this.#require(id)).filter((node) => node.parent === parent)
    return known.length > 0 ? known : turns.filter((node) => node.turnKey === facts.turnKey)
  }
}

function newNode(
  id: NodeId,
  parent: NodeId,
  tokenIds: Int32Array,
  end: number,
  content: BlockContent | TurnContent,
): PathNode {
  const [key, status] = content.kind === 'turn' ? [turnKey(content.turn), content.status] : ['', 'committed' as const]
  return { id, parent, tokenIds, end, content, turnKey: key, children: [], status, echo: '' }
}

function isEchoOf(node: PathNode, { fingerprint }: ItemFacts, read: () => Item): boolean {
  if (fingerprint !== '' && node.echo === fingerprint) return true
  const echo = read()
  if (node.content.kind !== 'turn' || echo.kind !== 'assistant' || !isEcho(node.content.turn, echo)) return false
  node.echo = fingerprint
  return true
}

function saysNext(digests: readonly string[], facts: readonly ItemFacts[], at: number): boolean {
  return digests.every((digest, i) => facts[at + i]?.digest === digest)
}

function beats(a: Candidate, b: Candidate): boolean {
  const { content } = a.node
  if (content.kind === 'block' && content.digests.length === 0) return false
  if (a.at !== b.at) return a.at > b.at
  if (a.doubtful !== b.doubtful) return a.doubtful < b.doubtful
  return a.node.id > b.node.id
}

function sameDigests(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((digest, i) => digest === b[i])
}

function sameIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i])
}
