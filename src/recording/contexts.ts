/**
 * @file Measures whether each call was sampled on the context its request describes.
 *
 * It follows the requests by their items alone, without the tree's own matching: what the harness wrote leads from one
 * place to the next, and so does every turn that was served there and comes back. A turn that comes back where it was
 * served must be the sampled ids; other words must not pass for a sampled turn. A turn that the harness repaired or
 * renamed may be either.
 */
import type { AssistantItem, Item } from '../core/items.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import { itemDigest } from '../trajectory/canonical.ts'
import type { NodeId, TreeNode } from '../trajectory/node.ts'
import type { ExecutionTree, TreeCall } from '../trajectory/tree.ts'
import { judgeEcho, plainText } from './echo-judge.ts'

/** One call, in the order the requests met the tree. */
export interface AskedCall {
  readonly callId: string
  /** Calls that were in the tree by then. */
  readonly committedBefore: number
  /** [T] what the engine saw, generation prompt included. */
  readonly context: Int32Array
  readonly items: readonly Item[]
}

export interface WrongContext {
  readonly callId: string
  readonly why: string
}

/** A place in a history. */
interface Place {
  readonly next: Map<string, Place>
  readonly served: { readonly call: TreeCall; readonly turn: AssistantItem; readonly place: Place }[]
}

/** A call that left no record is not looked at. */
export function wrongContexts(
  asked: readonly AskedCall[],
  tree: ExecutionTree,
  codec: Pick<ChatCodec, 'decode'>,
): readonly WrongContext[] {
  const history = new Histories(tree)
  const texts = new NodeTexts(codec)
  return asked.flatMap((one): readonly WrongContext[] => {
    history.serveUntil(one.committedBefore)
    const call = tree.calls().find((candidate) => candidate.callId === one.callId)
    const path = call === undefined ? [] : tree.pathNodes(tree.node(call.node)?.parent ?? 0)
    const spans = texts.spans(path)
    const expected = history.follow(one.callId, one.items, spans.turns)
    if (call === undefined) return []
    const why = fault(one, path, spans, expected)
    return why === undefined ? [] : [{ callId: one.callId, why }]
  })
}

function fault(
  one: AskedCall,
  path: readonly TreeNode[],
  spans: Spans,
  expected: readonly (readonly string[])[],
): string | undefined {
  if (!sameIds(one.context, path)) return 'the engine saw other ids than the path holds'
  const turns = one.items.filter((item) => item.kind === 'assistant')
  if (spans.turns.length !== turns.length) {
    return `the request holds ${turns.length} turns of the policy, the context ${spans.turns.length}`
  }
  for (const [k, turn] of turns.entries()) {
    const node = spans.turns[k]
    const here = expected[k] ?? []
    const isSampled = node?.provenance === 'policy'
    if (here.length > 0 && !(isSampled && here.includes(node.callId))) {
      return `turn ${k} of the request was sampled in call ${here.join(' or ')}, and the context has other ids`
    }
    if (isSampled && judgeEcho(node.turn, turn) === 'different') {
      return `turn ${k} of the context was sampled in call ${node.callId}, and the request says something else`
    }
  }
  return missingText(one.items, spans.between)
}

/** Everything the harness wrote must stand in the context, between the same turns. */
function missingText(items: readonly Item[], between: readonly string[]): string | undefined {
  let turn = 0
  for (const item of items) {
    if (item.kind === 'assistant') turn++
    else {
      const wanted = item.kind === 'tools' ? item.tools.map((tool) => tool.name) : [item.text]
      const lost = wanted.find((text) => !(between[turn] ?? '').includes(plain(text)))
      if (lost !== undefined)
        return `what the harness wrote before turn ${turn} is not in the context: "${lost.slice(0, 60)}"`
    }
  }
  return undefined
}

/** Tokenizers may compose characters. */
function plain(text: string): string {
  return plainText(text).normalize('NFC')
}

class Histories {
  readonly #tree: ExecutionTree
  readonly #start: Place = { next: new Map(), served: [] }
  /** Where each request ended. */
  readonly #ends = new Map<string, readonly Place[]>()
  #served = 0

  constructor(tree: ExecutionTree) {
    this.#tree = tree
  }

  /** The first `count` calls have been answered. */
  serveUntil(count: number): void {
    for (; this.#served < count; this.#served++) {
      const call = this.#tree.calls()[this.#served]
      const node = call === undefined ? undefined : this.#tree.node(call.node)
      if (call === undefined || node?.provenance !== 'policy') continue
      for (const place of this.#ends.get(call.callId) ?? []) {
        place.served.push({ call, turn: node.turn, place: { next: new Map(), served: [] } })
      }
    }
  }

  /**
   * For each turn of the request, the calls it must be the answer of; none when it was not served there, or came back
   * changed. Where it may be either, the way goes on as the context did.
   */
  follow(callId: string, items: readonly Item[], context: readonly TreeNode[]): readonly (readonly string[])[] {
    const expected: (readonly string[])[] = []
    let places: readonly Place[] = [this.#start]
    for (const item of items) {
      if (item.kind !== 'assistant') {
        places = places.map((place) => step(place, item))
        continue
      }
      const judged = places.flatMap(({ served }) =>
        served.map((one) => ({ ...one, verdict: judgeEcho(one.turn, item) })),
      )
      const same = judged.filter(({ verdict }) => verdict === 'same')
      const node = context[expected.length]
      const taken = judged.filter(
        ({ verdict, call }) => verdict === 'open' && node?.provenance === 'policy' && node.callId === call.callId,
      )
      const way = same.length > 0 ? same : taken
      expected.push(same.map(({ call }) => call.callId))
      places = way.length > 0 ? way.map(({ place }) => place) : places.map((place) => step(place, item))
    }
    this.#ends.set(callId, places)
    return expected
  }
}

function step(place: Place, item: Item): Place {
  const key = itemDigest(item)
  const known = place.next.get(key)
  if (known !== undefined) return known
  const fresh: Place = { next: new Map(), served: [] }
  place.next.set(key, fresh)
  return fresh
}

interface Spans {
  /** Sampled turns, and turns the harness claims. */
  readonly turns: readonly TreeNode[]
  /** What the harness wrote before each turn, and after the last. */
  readonly between: readonly string[]
}

class NodeTexts {
  readonly #codec: Pick<ChatCodec, 'decode'>
  readonly #texts = new Map<NodeId, string>()

  constructor(codec: Pick<ChatCodec, 'decode'>) {
    this.#codec = codec
  }

  spans(path: readonly TreeNode[]): Spans {
    const turns: TreeNode[] = []
    const between = ['']
    for (const node of path) {
      if (node.provenance === 'policy' || node.items.some((item) => item.kind === 'assistant')) {
        turns.push(node)
        between.push('')
      } else between[between.length - 1] += this.#text(node)
    }
    return { turns, between }
  }

  #text(node: TreeNode): string {
    const known = this.#texts.get(node.id)
    if (known !== undefined) return known
    const text = this.#codec.decode(node.tokenIds).normalize('NFC')
    this.#texts.set(node.id, text)
    return text
  }
}

function sameIds(context: Int32Array, path: readonly TreeNode[]): boolean {
  let at = 0
  for (const { tokenIds } of path) {
    if (!tokenIds.every((id, i) => context[at + i] === id)) return false
    at += tokenIds.length
  }
  return at === context.length
}
