/** @file Takes the long texts of a harness out of a request, and puts texts of the same length back in. */
import { createHash } from 'node:crypto'
import { escapesOf, fillerText, utf8Length } from './filler.ts'

/** The one key of an object that stands for a replaced text. */
const FILLER_KEY = '$text'
/** Ids of any kind, and what we gave the harness to send back unread. */
const OPAQUE_KEYS: ReadonlySet<string> = new Set([
  'id',
  'call_id',
  'tool_call_id',
  'tool_use_id',
  'signature',
  'encrypted_content',
  'thoughtSignature',
])
/** Arguments of a call come from the policy, whatever the harness did to them. */
const ARGUMENT_KEYS: ReadonlySet<string> = new Set(['arguments', 'input', 'args'])
const POLICY_ROLES: ReadonlySet<unknown> = new Set(['assistant', 'model'])
const POLICY_TYPES: ReadonlySet<unknown> = new Set(['function_call', 'custom_tool_call', 'reasoning'])
/** What tools and their fields are for: nothing reads it but a policy. [characters] */
const DESCRIPTION_OVER = 40
/** Opening and closing tags say what a text is. */
const EDGE_TAG = /^<\/?[\w-]{2,40}>|<\/?[\w-]{2,40}>$/g

export interface ReplaceOptions {
  /** Longer strings are replaced. [characters] */
  readonly over: number
  /** Short texts that stay inside a replaced one: what roles and rules are recognized by. Compared without case. */
  readonly signals: readonly string[]
  /** How lines begin that stay whole. */
  readonly lines: readonly string[]
  /** True for a text the policy sampled. */
  readonly isSampled: (text: string) => boolean
  /** Applied to every string first: folders of this machine are nobody's business. */
  readonly scrub: (text: string) => string
}

/** Where a value stands in a request. */
interface Place {
  readonly key: string
  readonly isPolicy: boolean
  readonly isArgument: boolean
}

export function replaceLongTexts(value: unknown, options: ReplaceOptions): unknown {
  return replaced(value, { key: '', isPolicy: false, isArgument: false }, options)
}

/** The opposite: every placeholder becomes its filler. */
export function withFillers(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withFillers)
  if (typeof value !== 'object' || value === null) return value
  if (FILLER_KEY in value) return expanded(value as Placeholder)
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withFillers(inner)]))
}

function replaced(value: unknown, place: Place, options: ReplaceOptions): unknown {
  if (typeof value === 'string') return replacedText(options.scrub(value), place, options)
  if (Array.isArray(value)) return value.map((inner) => replaced(inner, place, options))
  if (typeof value !== 'object' || value === null) return value
  const entries = value as Readonly<Record<string, unknown>>
  const isPolicy = place.isPolicy || POLICY_ROLES.has(entries['role']) || POLICY_TYPES.has(entries['type'])
  return Object.fromEntries(
    Object.entries(entries).map(([key, inner]) => {
      const isArgument = place.isArgument || (isPolicy && ARGUMENT_KEYS.has(key))
      return [key, replaced(inner, { key, isPolicy, isArgument }, options)]
    }),
  )
}

interface Placeholder {
  readonly [FILLER_KEY]: string
  readonly bytes: number
  readonly escapes?: number
  readonly keep?: readonly (readonly [number, string])[]
  /** Outer blanks are kept: they may come and go between two requests. */
  readonly before?: string
  readonly after?: string
}

function replacedText(text: string, place: Place, options: ReplaceOptions): unknown {
  const over = place.key === 'description' ? Math.min(DESCRIPTION_OVER, options.over) : options.over
  if (text.length <= over || OPAQUE_KEYS.has(place.key) || place.isArgument) return text
  if (place.isPolicy && options.isSampled(text)) return text
  const body = text.trim()
  if (body === '') return text
  const start = text.indexOf(body)
  const [before, after] = [text.slice(0, start), text.slice(start + body.length)]
  const keep = keptIn(body, options)
  const escapes = escapesOf(body)
  const placeholder: Placeholder = {
    [FILLER_KEY]: createHash('sha256').update(body).digest('hex').slice(0, 16),
    bytes: utf8Length(body),
    ...(escapes === 0 ? {} : { escapes }),
    ...(keep.length === 0 ? {} : { keep }),
    ...(before === '' ? {} : { before }),
    ...(after === '' ? {} : { after }),
  }
  return placeholder
}

function expanded({ [FILLER_KEY]: id, bytes, escapes = 0, keep = [], before = '', after = '' }: Placeholder): string {
  return before + fillerText({ id, bytes, escapes, keep }) + after
}

/** First places of all signals, as written, in order and without overlap. */
function keptIn(text: string, { signals, lines }: ReplaceOptions): readonly (readonly [number, string])[] {
  const lower = text.toLowerCase()
  const spans = signals.flatMap((signal) => {
    const at = lower.indexOf(signal.toLowerCase())
    return at < 0 ? [] : [{ at, end: at + signal.length }]
  })
  let at = 0
  for (const line of text.split('\n')) {
    const end = at + line.length + 1
    if (lines.some((begin) => line.startsWith(begin)))
      spans.push({ at: Math.max(0, at - 1), end: Math.min(end, text.length) })
    at = end
  }
  for (const match of text.matchAll(EDGE_TAG)) spans.push({ at: match.index, end: match.index + match[0].length })
  const kept: (readonly [number, string])[] = []
  let end = 0
  for (const span of spans.toSorted((a, b) => a.at - b.at || b.end - a.end)) {
    const from = Math.max(span.at, end)
    if (span.end <= from) continue
    kept.push([utf8Length(text.slice(0, from)), text.slice(from, span.end)])
    end = span.end
  }
  return kept
}
