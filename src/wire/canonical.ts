/** @file Rules of canonicalization that the dialects share. */
import type { SystemItem } from '../core/items.ts'

/** Text that only its harness's billing reads; it changes inside a conversation, so it never reaches the policy. */
function isVolatileSystemText(text: string): boolean {
  return text.startsWith('x-anthropic-billing-header:')
}

export function systemItem(texts: readonly string[]): readonly SystemItem[] {
  const kept = texts.filter((text) => text !== '' && !isVolatileSystemText(text))
  return kept.length === 0 ? [] : [{ kind: 'system', text: kept.join('\n') }]
}
