/**
 * @file Encodes what is new in a request, and the beginnings that many executions share only once.
 *
 * Every execution of a harness opens with the same tools and system text, and every member of a group with the same
 * task: their ids are kept, bounded, and shared, so they cost neither time nor memory again.
 */
import type { AssistantItem, HarnessItem, Item } from '../core/items.ts'
import type { BlockContext, ChatCodec } from '../tokens/codec.ts'
import type { ItemFacts } from '../trajectory/path-tree.ts'

/** An item that no path of the tree says yet. */
export interface NewItem {
  readonly item: Item
  readonly facts: ItemFacts
}

/** Ids kept for blocks that open a path. [tokens] */
const KEPT_TOKENS = 2_000_000

export class BlockEncoder {
  readonly #codec: ChatCodec
  /** By context and fingerprints, the least recently used first. */
  readonly #kept = new Map<string, Int32Array>()
  readonly #openings = new Map<BlockContext | undefined, Int32Array>()
  #keptTokens = 0

  constructor(codec: ChatCodec) {
    this.#codec = codec
  }

  turn(turn: AssistantItem): Int32Array {
    return this.#codec.encodeTurn(turn)
  }

  /** The ids that open an assistant turn, after the glue that ends the turn before it when there is one. */
  opening(afterTurn: 'turn-closed' | 'turn-open' | undefined): Int32Array {
    const known = this.#openings.get(afterTurn)
    if (known !== undefined) return known
    const glue = afterTurn === undefined ? [] : this.#codec.encodeBlock([], afterTurn)
    const ids = Int32Array.from([...glue, ...this.#codec.encodeGenerationPrompt()])
    this.#openings.set(afterTurn, ids)
    return ids
  }

  /** One block of harness items. What follows a turn is new in every execution, so it is not kept. */
  block(items: readonly NewItem[], context: BlockContext): Int32Array {
    const texts = items.map(({ item }) => item as HarnessItem)
    if (context !== 'start' && context !== 'harness') return this.#codec.encodeBlock(texts, context)
    const key = `${context} ${items.map(({ facts }) => facts.fingerprint).join(' ')}`
    const ids = this.#kept.get(key) ?? this.#codec.encodeBlock(texts, context)
    this.#keep(key, ids)
    return ids
  }

  #keep(key: string, ids: Int32Array): void {
    if (this.#kept.delete(key)) this.#keptTokens -= ids.length
    this.#kept.set(key, ids)
    this.#keptTokens += ids.length
    for (const [oldest, { length }] of this.#kept) {
      if (this.#keptTokens <= KEPT_TOKENS) break
      this.#kept.delete(oldest)
      this.#keptTokens -= length
    }
  }
}
