/** @file From canonical items to the ids the engine will see, encoding only what the tree does not hold yet. */
import { invariant } from '../core/errors.ts'
import type { AssistantItem, HarnessItem, Item } from '../core/items.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { NodeId } from '../trajectory/node.ts'
import type { ExecutionTree, PathContext } from '../trajectory/tree.ts'

/** A harness node that does not exist yet. */
export interface BlockDraft {
  readonly items: readonly Item[]
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

export function planPrompt(tree: ExecutionTree, codec: ChatCodec, items: readonly Item[]): Prompt {
  const { parent, matchedItems } = tree.match(items)
  const blocks = encodeTail(codec, items.slice(matchedItems), tree.contextOf(parent))
  const parts = [tree.pathTokenIds(parent), ...blocks.map((block) => block.tokenIds)]
  return { parent, blocks, tokenIds: concatenated(parts) }
}

function encodeTail(codec: ChatCodec, tail: readonly Item[], start: PathContext): readonly BlockDraft[] {
  const blocks: BlockDraft[] = []
  let context = start
  for (const block of splitBlocks(tail)) {
    if (block.kind === 'turn') {
      blocks.push(opening(codec, context), { items: [block.turn], tokenIds: codec.encodeTurn(block.turn) })
      context = 'turn-closed'
    } else {
      blocks.push({ items: block.items, tokenIds: codec.encodeBlock(block.items, context) })
      context = 'harness'
    }
  }
  invariant(context === 'harness' || context === 'start', 'a request ends in an item of the harness')
  return [...blocks, opening(codec, context)]
}

/** The ids that open an assistant turn; after another turn, with the glue that ends it. */
function opening(codec: ChatCodec, context: PathContext): BlockDraft {
  const isAfterTurn = context === 'turn-closed' || context === 'turn-open'
  const glue = isAfterTurn ? codec.encodeBlock([], context) : new Int32Array(0)
  return { items: [], tokenIds: concatenated([glue, codec.encodeGenerationPrompt()]) }
}

type Block =
  | { readonly kind: 'harness'; readonly items: readonly HarnessItem[] }
  /** A turn that was never sampled here: rewritten or imported history. */
  | { readonly kind: 'turn'; readonly turn: AssistantItem }

/** Tools with the first system text are one block, and so is each run of tool results. */
function splitBlocks(items: readonly Item[]): readonly Block[] {
  const blocks: Block[] = []
  let open: HarnessItem[] | undefined
  for (const item of items) {
    if (item.kind === 'assistant') {
      blocks.push({ kind: 'turn', turn: item })
      open = undefined
    } else if (open !== undefined && joins(open.at(-1), item)) {
      open.push(item)
    } else {
      open = [item]
      blocks.push({ kind: 'harness', items: open })
    }
  }
  return blocks
}

function joins(last: HarnessItem | undefined, next: HarnessItem): boolean {
  return (
    (last?.kind === 'tools' && next.kind === 'system') || (last?.kind === 'tool-result' && next.kind === 'tool-result')
  )
}

function concatenated(parts: readonly Int32Array[]): Int32Array {
  const out = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    out.set(part, at)
    at += part.length
  }
  return out
}
