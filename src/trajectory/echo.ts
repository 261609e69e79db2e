/**
 * @file Is an assistant turn in a request the turn we served?
 *
 * Harnesses re-key, re-type, re-escape, rename and repair what they were given before they send it back.
 * Such an echo is the same node, and its recorded tokens stand. A turn whose words or arguments were
 * changed is another context, hence a branch.
 */
import type { AssistantItem, Json, ToolCall } from '../core/items.ts'
import { canonicalJson, canonicalText, spokenText } from './canonical.ts'
import { MAX_DEPTH, parseBoth, sameNumber } from './exact-json.ts'
import { completedJson } from './truncated-json.ts'

/** Names harnesses give to a call they could not run; the call keeps its id. */
const PLACEHOLDER_TOOLS: ReadonlySet<string> = new Set(['invalid'])
/** Argument keys that wrap arguments a harness could not parse. */
const PLACEHOLDER_KEYS: readonly string[] = ['__unparsedToolInput']
/** What Qwen Code puts behind an id that it has seen before. */
const DUPLICATE_SUFFIX = /__qwen_dup_\d+$/

type JsonObject = Readonly<Record<string, Json>>
/** `strict`: both sides name the same fields. `lenient`: a schema may strip unknown ones and fill in defaults. */
type Fields = 'strict' | 'lenient'

/** The id we served, whatever a harness put behind it. */
export function servedCallId(id: string): string {
  return id.replace(DUPLICATE_SUFFIX, '')
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function sameScalar(served: boolean | number | string, echo: boolean | number | string): boolean {
  return canonicalText(String(served)) === canonicalText(String(echo)) || sameNumber(served, echo)
}

/** Equal as a lenient schema would read them: `"5"` and 5, `"true"` and true, at any depth. */
function sameValue(served: Json, echo: Json, fields: Fields, depth: number): boolean {
  if (depth > MAX_DEPTH) return false
  if (isObject(served) && isObject(echo)) return sameFields(served, echo, fields, depth)
  if (Array.isArray(served) && Array.isArray(echo)) {
    const [before, after] = [served as readonly Json[], echo as readonly Json[]]
    if (before.length !== after.length) return false
    return before.every((value, i) => sameValue(value, after[i] ?? null, fields, depth + 1))
  }
  if (typeof served === 'object' || typeof echo === 'object') return served === echo
  return sameScalar(served, echo)
}

function sameFields(served: JsonObject, echo: JsonObject, fields: Fields, depth = 0): boolean {
  const keys = Object.keys(served)
  const shared = keys.filter((key) => Object.hasOwn(echo, key))
  if (fields === 'strict' && (shared.length < keys.length || shared.length < Object.keys(echo).length)) return false
  if (shared.length === 0) return keys.length === 0
  return shared.every((key) => sameValue(served[key] ?? null, echo[key] ?? null, fields, depth + 1))
}

/** An argument object and how a harness would round it; undefined when the text is none. Blank text has no arguments. */
function argumentsOf(text: string): { readonly rounded: JsonObject; readonly exact: JsonObject } | undefined {
  if (text.trim() === '') return { rounded: {}, exact: {} }
  const both = parseBoth(text)
  return both !== undefined && isObject(both.rounded) && isObject(both.exact)
    ? { rounded: both.rounded, exact: both.exact }
    : undefined
}

function sameJson(a: Json, b: Json): boolean {
  const text = canonicalJson(a)
  return text !== undefined && text === canonicalJson(b)
}

/** Arguments that parse: the harness may have read its numbers as doubles, so the served side may be rounded too. */
function sameArguments(served: ToolCall, echo: ToolCall, fields: Fields): boolean {
  const before = argumentsOf(served.argumentsText)
  const after = argumentsOf(echo.argumentsText)
  if (before === undefined || after === undefined) return false
  if (sameJson(before.exact, after.exact) || sameJson(before.rounded, after.exact)) return true
  return sameFields(before.exact, after.exact, fields) || sameFields(before.rounded, after.exact, fields)
}

/** Arguments that do not parse, wrapped or repaired. A repair that is not a plain completion needs the id. */
function isRepaired(served: ToolCall, echo: ToolCall, sameId: boolean): boolean {
  if (argumentsOf(served.argumentsText) !== undefined) return false
  const after = argumentsOf(echo.argumentsText)
  if (after === undefined) return false
  if (sameId) return true
  const completed = completedJson(served.argumentsText)
  const before = completed === undefined ? undefined : argumentsOf(completed)
  return before !== undefined && sameJson(before.exact, after.exact)
}

/** Wrapped by a harness whose parser is stricter than ours. */
function isWrapped(echo: ToolCall): boolean {
  const after = argumentsOf(echo.argumentsText)
  return after !== undefined && PLACEHOLDER_KEYS.some((key) => Object.hasOwn(after.exact, key))
}

function sameCall(served: ToolCall, echo: ToolCall): boolean {
  const sameId = served.id === servedCallId(echo.id)
  if (served.name !== echo.name) return sameId && PLACEHOLDER_TOOLS.has(echo.name)
  if (served.argumentsText.trim() === echo.argumentsText.trim()) return true
  if (sameArguments(served, echo, sameId ? 'lenient' : 'strict')) return true
  return isRepaired(served, echo, sameId) || (sameId && isWrapped(echo))
}

/** True when `echo` is `served` after nothing worse than normalisation, repair, or the loss of its thinking. */
export function isEcho(served: AssistantItem, echo: AssistantItem): boolean {
  if (served.toolCalls.length !== echo.toolCalls.length) return false
  if (canonicalText(served.text) !== canonicalText(echo.text) && spokenText(served.text) !== spokenText(echo.text)) {
    return false
  }
  const thinking = canonicalText(echo.thinking)
  if (thinking !== '' && thinking !== canonicalText(served.thinking)) return false
  return served.toolCalls.every((call, i) => {
    const other = echo.toolCalls[i]
    return other !== undefined && sameCall(call, other)
  })
}
