/** @file Rules of canonicalization that the dialects share. */
import type { Item, SystemItem, ToolSpec } from '../core/items.ts'
import { malformed } from './validate.ts'

/** Puts the parts of a request in canonical order and refuses conversations nothing can follow. */
export function canonicalItems(tools: readonly ToolSpec[], conversation: readonly Item[]): readonly Item[] {
  const last = conversation.at(-1)
  if (last === undefined) throw malformed('messages', 'must hold at least one message')
  if (last.kind === 'assistant') {
    throw malformed('messages', 'must not end with an assistant message: the policy never continues a given turn')
  }
  return tools.length === 0 ? conversation : [{ kind: 'tools', tools }, ...conversation]
}

/** Text that only its harness's billing reads; it changes inside a conversation, so it never reaches the policy. */
function isVolatileSystemText(text: string): boolean {
  return text.startsWith('x-anthropic-billing-header:')
}

export function systemItem(texts: readonly string[]): readonly SystemItem[] {
  const kept = texts.filter((text) => text !== '' && !isVolatileSystemText(text))
  return kept.length === 0 ? [] : [{ kind: 'system', text: kept.join('\n') }]
}
