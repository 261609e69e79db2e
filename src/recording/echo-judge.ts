/**
 * @file Is a turn in a request a turn that was served? The judge's own answer, on purpose not the tree's.
 *
 * It is certain only where it can be: the same words with arguments that parse to the same values came back, and other
 * words did not. What a harness repairs, renames or strips may be taken either way.
 */
import type { AssistantItem, Json, ToolCall } from '../core/items.ts'

export type Verdict = 'same' | 'different' | 'open'

export function judgeEcho(served: AssistantItem, echo: AssistantItem): Verdict {
  const isSameText = plainText(served.text) === plainText(echo.text)
  // Some harnesses put words of their own where the policy had none.
  if (!isSameText && plainText(served.text) !== '') return 'different'
  const thinking = plainText(echo.thinking)
  if (thinking !== '' && thinking !== plainText(served.thinking)) return 'different'
  if (served.toolCalls.length !== echo.toolCalls.length) return 'different'
  const verdicts = new Set(served.toolCalls.map((call, i) => judgeCall(call, echo.toolCalls[i] ?? call)))
  if (verdicts.has('different')) return 'different'
  return verdicts.has('open') || !isSameText ? 'open' : 'same'
}

/** Outer blanks and broken characters get lost on the way. */
export function plainText(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd').trim()
}

function judgeCall(served: ToolCall, echo: ToolCall): Verdict {
  if (served.name !== echo.name) return served.id === echo.id ? 'open' : 'different'
  const [before, after] = [argumentsOf(served), argumentsOf(echo)]
  if (before === undefined || after === undefined) {
    return served.argumentsText.trim() === echo.argumentsText.trim() ? 'same' : 'open'
  }
  if (sameJson(before, after)) return 'same'
  const shared = Object.keys(after).filter((key) => Object.hasOwn(before, key))
  return shared.some((key) => areUnlike(before[key], after[key])) ? 'different' : 'open'
}

type Arguments = Readonly<Record<string, Json>>

function argumentsOf({ argumentsText }: ToolCall): Arguments | undefined {
  try {
    const value = JSON.parse(argumentsText === '' ? '{}' : argumentsText) as Json
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Arguments) : undefined
  } catch {
    return undefined
  }
}

function sameJson(a: Json, b: Json): boolean {
  if (typeof a === 'string' && typeof b === 'string') return plainText(a) === plainText(b)
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return a === b
  const [before, after] = [Object.entries(a), b as Arguments]
  const isSameShape = Array.isArray(a) === Array.isArray(b) && before.length === Object.keys(b).length
  return isSameShape && before.every(([key, value]) => Object.hasOwn(after, key) && sameJson(value, after[key] ?? null))
}

/** Two simple values that no lenient reading makes equal; anything with structure is left open. */
function areUnlike(a: Json | undefined, b: Json | undefined): boolean {
  if (typeof a === 'object' || typeof b === 'object' || a === undefined || b === undefined) return false
  return plainText(String(a)) !== plainText(String(b))
}
