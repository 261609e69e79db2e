/** @file Turns a written conversation into tokens and a loss mask, exactly as the gateway would have encoded it. */
import type { HarnessItem, Item } from '../core/items.ts'
import type { BlockContext, ChatCodec } from '../tokens/codec.ts'

export interface DemonstrationTokens {
  /** [T] */
  readonly tokenIds: Int32Array
  /** [T] 1 where the demonstrator spoke. */
  readonly targetMask: Uint8Array
}

/** @param items header, instruction, then turns and results; ends with an assistant turn. */
export function encodeDemonstration(codec: ChatCodec, items: readonly Item[]): DemonstrationTokens {
  const parts: { ids: Int32Array; trained: boolean }[] = []
  let context: BlockContext = 'start'
  let block: HarnessItem[] = []
  for (const item of items) {
    if (item.kind !== 'assistant') {
      block.push(item)
      continue
    }
    parts.push({ ids: codec.encodeBlock(block, context), trained: false })
    parts.push({ ids: codec.encodeGenerationPrompt(), trained: false })
    parts.push({ ids: codec.encodeTurn(item), trained: true })
    context = 'turn-closed'
    block = []
  }
  const length = parts.reduce((sum, part) => sum + part.ids.length, 0)
  const tokenIds = new Int32Array(length)
  const targetMask = new Uint8Array(length)
  let at = 0
  for (const { ids, trained } of parts) {
    tokenIds.set(ids, at)
    if (trained) targetMask.fill(1, at, at + ids.length)
    at += ids.length
  }
  return { tokenIds, targetMask }
}

/**
 * Every turn of a conversation with nothing but the block before it: short contexts in which what a turn copies
 * is found quickly. A policy that learns these first learns whole conversations in a fraction of the steps.
 */
export function encodeExcerpts(codec: ChatCodec, items: readonly Item[]): readonly DemonstrationTokens[] {
  const excerpts: DemonstrationTokens[] = []
  let block: Item[] = []
  for (const item of items) {
    if (item.kind === 'tools' || item.kind === 'system') continue
    block.push(item)
    if (item.kind !== 'assistant') continue
    excerpts.push(encodeDemonstration(codec, block))
    block = []
  }
  return excerpts
}
