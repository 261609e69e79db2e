/** @file From canonical items to the ids the engine will see, encoding only what the tree does not hold yet. */
import { invariant } from '../core/errors.ts'
import type { Item } from '../core/items.ts'
import type { NodeId } from '../trajectory/node.ts'
import type { PathContext, PathTree } from '../trajectory/path-tree.ts'
import type { BlockEncoder, NewItem } from './block-encoder.ts'
import type { Conversation } from './conversation.ts'

/** A harness node that does not exist yet. */
export interface BlockDraft {
  readonly items: readonly Item[]
  /** Of the items. */
  readonly digests: readonly string[]
  readonly tokenIds: Int32Array
}

export interface Prompt {
  /** The deepest node that already holds a part of the request. */
  readonly parent: NodeId
  /** What follows it, generation prompt included. */
  readonly blocks: readonly BlockDraft[]
  /** [T] root to generation prompt: exactly what the engine sees. */
  readonly tokenIds: Int32Array
}

export function planPrompt(tree: PathTree, encoder: BlockEncoder, conversation: Conversation): Prompt {
  const { facts, itemAt } = conversation
  const { parent, matchedItems } = tree.match(facts, itemAt)
  const tail = facts.slice(matchedItems).map((fact, i) => ({ item: itemAt(matchedItems + i), facts: fact }))
  const blocks = encodeTail(encoder, tail, tree.contextOf(parent))
  const added = blocks.reduce((sum, block) => sum + block.tokenIds.length, 0)
  const tokenIds = tree.pathTokenIds(parent, added)
  let at = tokenIds.length - added
  for (const block of blocks) {
    tokenIds.set(block.tokenIds, at)
    at += block.tokenIds.length
  }
  return { parent, blocks, tokenIds }
}

function encodeTail(encoder: BlockEncoder, tail: readonly NewItem[], start: PathContext): readonly BlockDraft[] {
  const blocks: BlockDraft[] = []
  let context = start
  for (const items of splitBlocks(tail)) {
    const [first] = items
    if (first?.item.kind === 'assistant') {
      blocks.push(opening(encoder, context), draft(items, encoder.turn(first.item)))
      context = 'turn-closed'
    } else {
      blocks.push(draft(items, encoder.block(items, context)))
      context = 'harness'
    }
  }
  invariant(context === 'harness' || context === 'start', 'a request ends in an item of the harness')
  return [...blocks, opening(encoder, context)]
}

function draft(items: readonly NewItem[], tokenIds: Int32Array): BlockDraft {
  return { items: items.map(({ item }) => item), digests: items.map(({ facts }) => facts.digest), tokenIds }
}

/** The ids that open an assistant turn; after another turn, with the glue that ends it. */
function opening(encoder: BlockEncoder, context: PathContext): BlockDraft {
  const isAfterTurn = context === 'turn-closed' || context === 'turn-open'
  return { items: [], digests: [], tokenIds: encoder.opening(isAfterTurn ? context : undefined) }
}

/** Tools with the first system text are one block, and so is each run of tool results; a turn stands alone. */
function splitBlocks(items: readonly NewItem[]): readonly (readonly NewItem[])[] {
  const blocks: NewItem[][] = []
  for (const next of items) {
    const open = blocks.at(-1)
    if (open !== undefined && joins(open.at(-1)?.item, next.item)) open.push(next)
    else blocks.push([next])
  }
  return blocks
}

function joins(last: Item | undefined, next: Item): boolean {
  return (
    (last?.kind === 'tools' && next.kind === 'system') || (last?.kind === 'tool-result' && next.kind === 'tool-result')
  )
}
