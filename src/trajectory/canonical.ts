/**
 * @file Canonical content of items: what two requests must share to be the same context.
 *
 * A key is a 53-bit hash used to find candidates; equality is always checked on the content itself.
 */
import type { AssistantItem, Item, Json, ToolCall } from '../core/items.ts'

/** Deeper JSON than this is compared as text: recursion must not depend on what a policy wrote. [levels] */
const MAX_DEPTH = 256

/** Lone surrogates do not survive UTF-8, so both sides get the replacement character for them. */
function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd')
}

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

/** Arguments of a tool call as an object; undefined when the text is not one. Blank text means no arguments. */
export function parseArguments(text: string): Readonly<Record<string, Json>> | undefined {
  if (text.trim() === '') return {}
  try {
    const value = JSON.parse(text) as Json
    if (value === null || typeof value !== 'object' || Array.isArray(value)) return undefined
    return value as Readonly<Record<string, Json>>
  } catch {
    return undefined
  }
}

/** Arguments in a form that survives re-keying, re-typing (`5000.0`), re-escaping and blanks. */
export function canonicalArguments(text: string): string {
  const value = parseArguments(text)
  return (value === undefined ? undefined : canonicalJson(value)) ?? text.trim()
}

/** Text of an assistant turn as harnesses keep it: outer blanks and broken surrogates do not count. */
export function canonicalText(text: string): string {
  return wellFormed(text).trim()
}

/** Two 32-bit lanes of multiply-xor over UTF-16 units, joined to a safe integer. */
function hashText(text: string): number {
  let a = 0x9747b28c
  let b = 0x1b873593
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    a = Math.imul(a ^ unit, 0x85ebca6b)
    b = Math.imul(b ^ unit, 0xc2b2ae35)
    a ^= a >>> 15
    b ^= b >>> 13
  }
  return (a >>> 0) * 2_097_152 + ((b >>> 0) & 0x1fffff)
}

function callText(call: ToolCall): string {
  return `${call.name}\u001f${canonicalText(canonicalArguments(call.argumentsText))}`
}

function turnText(turn: AssistantItem): string {
  return [canonicalText(turn.text), ...turn.toolCalls.map(callText)].join('\u001e')
}

/** Tool results are told apart by what they say: harnesses replace ids, and some dialects have no names. */
function contentText(item: Item): string {
  if (item.kind === 'assistant') return turnText(item)
  if (item.kind === 'tool-result') return `${item.isError ? '!' : '='}${item.text}`
  if (item.kind !== 'tools') return item.text
  return canonicalJson(item.tools as unknown as Json) ?? JSON.stringify(item.tools.map((tool) => tool.name))
}

/** Key of an item's canonical content. Thinking is left out: some harnesses drop it. */
export function itemKey(item: Item): string {
  return `${item.kind}:${hashText(contentText(item))}`
}

/** True when two harness items, or two turns the policy never sampled, say the same. */
export function sameContent(a: Item, b: Item): boolean {
  return a.kind === b.kind && contentText(a) === contentText(b)
}
