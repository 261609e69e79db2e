/** @file A request as the gateway works with it: what its items are known by, and their text for whoever asks. */
import { createHash } from 'node:crypto'
import { invariant } from '../core/errors.ts'
import type { Item } from '../core/items.ts'
import { itemFacts } from '../trajectory/path-tree.ts'
import type { ItemFacts } from '../trajectory/path-tree.ts'
import type { Envelope, ParsedRequest } from '../wire/dialect.ts'

export interface Conversation {
  readonly envelope: Envelope
  /** Of all items: tools, system, then the conversation as it was sent. */
  readonly facts: readonly ItemFacts[]
  /** Reads the item again when it came in an earlier request. */
  readonly itemAt: (index: number) => Item
  /**
   * The items that say who speaks: every system item, the first user item, and all items from the last turn of the
   * policy on, which may repeat one of the others.
   */
  readonly signals: readonly Item[]
  /** Equal for requests with equal items only. */
  readonly contextHash: string
}

/** Characters of a fingerprint: 132 bits. */
const FINGERPRINT_LENGTH = 22

export function factsOf(item: Item): ItemFacts {
  return itemFacts(item, sha256(JSON.stringify(item)).slice(0, FINGERPRINT_LENGTH))
}

export function contextHashOf(facts: readonly ItemFacts[]): string {
  return sha256(facts.map(({ fingerprint }) => fingerprint).join(''))
}

/** The items from the last turn of the policy on. */
export function lastExchange(facts: readonly ItemFacts[], itemAt: (index: number) => Item): readonly Item[] {
  const from = Math.max(
    0,
    facts.findLastIndex(({ kind }) => kind === 'assistant'),
  )
  return facts.slice(from).map((_, i) => itemAt(from + i))
}

/** Reads nothing again: every item is at hand. */
export function conversationOf({ items, ...envelope }: ParsedRequest): Conversation {
  const facts = items.map(factsOf)
  const itemAt = (index: number): Item => {
    const item = items[index]
    invariant(item !== undefined, `item ${index} is in the request`)
    return item
  }
  return { envelope, facts, itemAt, signals: items, contextHash: contextHashOf(facts) }
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('base64url')
}
