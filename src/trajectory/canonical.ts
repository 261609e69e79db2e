/**
 * @file Canonical content of items: what two requests must share to be the same context.
 *
 * Content is what the policy reads, no more: a mark that the chat template does not render is not content.
 */
import type { AssistantItem, Item, Json } from '../core/items.ts'
import { ContentHash, wellFormed } from './content-hash.ts'
import { MAX_DEPTH, parseBoth } from './exact-json.ts'

/** What Claude Code writes for a turn that said nothing. */
const EMPTY_TURN_TEXTS: ReadonlySet<string> = new Set(['(no content)'])

/** JSON with sorted keys and no blanks; undefined when it is nested too deeply to walk. */
export function canonicalJson(value: Json, depth = 0): string | undefined {
  if (depth > MAX_DEPTH) return undefined
  if (typeof value === 'string') return JSON.stringify(wellFormed(value))
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  const parts: string[] = []
  if (Array.isArray(value)) {
    for (const element of value as readonly Json[]) {
      const text = canonicalJson(element, depth + 1)
      if (text === undefined) return undefined
      parts.push(text)
    }
    return `[${parts.join(',')}]`
  }
  const object = value as Readonly<Record<string, Json>>
  for (const key of Object.keys(object).sort()) {
    const text = canonicalJson(object[key] ?? null, depth + 1)
    if (text === undefined) return undefined
    parts.push(`${JSON.stringify(wellFormed(key))}:${text}`)
  }
  return `{${parts.join(',')}}`
}

/** Arguments in a form that survives re-keying, re-typing (`5000.0`), re-escaping and blanks. */
export function canonicalArguments(text: string): string {
  if (text.trim() === '') return '{}'
  const value = parseBoth(text)
  return (value === undefined ? undefined : canonicalJson(value.exact)) ?? text.trim()
}

/** Text of an assistant turn as harnesses keep it: outer blanks and broken surrogates do not count. */
export function canonicalText(text: string): string {
  return wellFormed(text).trim()
}

/** `canonicalText` of a turn; nothing for the words that stand for a turn that said nothing. */
export function spokenText(text: string): string {
  const canonical = canonicalText(text)
  return EMPTY_TURN_TEXTS.has(canonical) ? '' : canonical
}

/**
 * 32 hexadecimal digits, equal for equal content and only for it. Thinking is left out, since some harnesses drop it;
 * so are ids of calls, which some replace, and names and error marks of tool results, which the policy never reads.
 */
export function itemDigest(item: Item): string {
  const hash = new ContentHash().add(item.kind)
  switch (item.kind) {
    case 'assistant':
      hash.add(canonicalText(item.text))
      for (const call of item.toolCalls) hash.add(call.name).add(canonicalArguments(call.argumentsText))
      break
    case 'tools':
      hash.add(canonicalJson(item.tools as unknown as Json) ?? JSON.stringify(item.tools))
      break
    case 'system':
    case 'user':
    case 'tool-result':
      hash.add(item.text)
      break
    default:
      item satisfies never
  }
  return hash.digest()
}

/** Where to look for the turn that an item echoes when no id of a call is known: equal for a turn and its echoes. */
export function turnKey(turn: AssistantItem): string {
  const hash = new ContentHash().add(spokenText(turn.text))
  for (const call of turn.toolCalls) hash.add(call.name)
  return hash.digest()
}
