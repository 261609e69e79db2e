/**
 * @file Is an assistant turn in a request the turn we served?
 *
 * Harnesses re-key, re-type, re-escape, rename and repair what they were given before they send it back.
 * Such an echo is the same node, and its recorded tokens stand. A turn whose words or arguments were
 * changed is another context, hence a branch.
 */
import type { AssistantItem, Json, ToolCall } from '../core/items.ts'
import { canonicalArguments, canonicalJson, canonicalText, parseArguments } from './canonical.ts'

/** Names harnesses give to a call they could not run; the call keeps its id. */
const PLACEHOLDER_TOOLS: ReadonlySet<string> = new Set(['invalid'])
/** Argument keys that wrap arguments a harness could not parse. */
const PLACEHOLDER_KEYS: readonly string[] = ['__unparsedToolInput']

/** Equal as a lenient schema would read them: `"5"` and 5, `"true"` and true. */
function sameValue(served: Json, echo: Json): boolean {
  if (served === null || echo === null) return served === echo
  if (typeof served === 'object' || typeof echo === 'object') {
    const text = canonicalJson(served)
    return text !== undefined && text === canonicalJson(echo)
  }
  return canonicalText(String(served)) === canonicalText(String(echo))
}

/** A schema may strip unknown keys and fill defaults, but what both sides name must agree. */
function sameFields(served: Readonly<Record<string, Json>>, echo: Readonly<Record<string, Json>>): boolean {
  const shared = Object.keys(echo).filter((key) => Object.hasOwn(served, key))
  if (shared.length === 0) return Object.keys(served).length === 0
  return shared.every((key) => sameValue(served[key] ?? null, echo[key] ?? null))
}

function sameCall(served: ToolCall, echo: ToolCall): boolean {
  const sameName = served.name === echo.name
  if (sameName && canonicalArguments(served.argumentsText) === canonicalArguments(echo.argumentsText)) return true
  if (served.id !== echo.id) return false
  if (!sameName) return PLACEHOLDER_TOOLS.has(echo.name)
  const before = parseArguments(served.argumentsText)
  // Nothing the harness could parse: whatever stands there now is its repair.
  if (before === undefined) return true
  const after = parseArguments(echo.argumentsText)
  if (after === undefined) return false
  return PLACEHOLDER_KEYS.some((key) => Object.hasOwn(after, key)) || sameFields(before, after)
}

/** True when `echo` is `served` after nothing worse than normalisation, repair, or the loss of its thinking. */
export function isEcho(served: AssistantItem, echo: AssistantItem): boolean {
  if (served.toolCalls.length !== echo.toolCalls.length) return false
  if (canonicalText(served.text) !== canonicalText(echo.text)) return false
  const thinking = canonicalText(echo.thinking)
  if (thinking !== '' && thinking !== canonicalText(served.thinking)) return false
  return served.toolCalls.every((call, i) => {
    const other = echo.toolCalls[i]
    return other !== undefined && sameCall(call, other)
  })
}
