/** @file Text that stands in for a text of the harness: same length, same place for what must stay, nothing of the rest. */
import { hashSeed, seededRng } from '../core/rng.ts'
import type { Rng } from '../core/rng.ts'

/** A text that was replaced. */
export interface Filler {
  /** Of the original: equal for equal texts, different for different ones. */
  readonly id: string
  /** UTF-8 length of the original. [bytes] */
  readonly bytes: number
  /** How much longer the original is as a JSON string: its line breaks, quotes and backslashes. [bytes] */
  readonly escapes: number
  /** What stays, by its offset. [bytes] */
  readonly keep: readonly (readonly [at: number, text: string])[]
}

const SYLLABLES = ['ba', 'de', 'fi', 'go', 'hu', 'ka', 'le', 'mi', 'no', 'pu', 'ra', 'se', 'ti', 'vo', 'zu', 'xy']

/** Exactly `bytes` bytes long, in JSON too; the same filler always gives the same text. */
export function fillerText({ id, bytes, escapes, keep }: Filler): string {
  const own = bytes - keep.reduce((sum, [, text]) => sum + utf8Length(text), 0)
  const breaks = escapes - keep.reduce((sum, [, text]) => sum + escapesOf(text), 0)
  const words = withLineBreaks(nonsense(own, seededRng(hashSeed(id))), breaks)
  let text = ''
  let at = 0
  let used = 0
  for (const [start, kept] of keep) {
    text += words.slice(used, used + start - at) + kept
    used += start - at
    at = start + utf8Length(kept)
  }
  return text + words.slice(used)
}

export function utf8Length(text: string): number {
  return new TextEncoder().encode(text).length
}

/** How much longer a text is as a JSON string, quotes aside. [bytes] */
export function escapesOf(text: string): number {
  return utf8Length(JSON.stringify(text)) - 2 - utf8Length(text)
}

/** Words of small letters. */
function nonsense(length: number, rng: Rng): string {
  let text = ''
  while (text.length < length) {
    let word = ''
    for (let i = 1 + rng.below(4); i > 0; i--) word += SYLLABLES[rng.below(SYLLABLES.length)] ?? ''
    text += word + (rng.below(8) === 0 ? ', ' : ' ')
  }
  return text.slice(0, Math.max(0, length))
}

/** Evenly spread, and never at an end. */
function withLineBreaks(text: string, count: number): string {
  const inner = text.length - 2
  const breaks = new Set(Array.from({ length: Math.min(count, inner) }, (_, i) => 1 + Math.floor((i * inner) / count)))
  return Array.from(text, (char, i) => (breaks.has(i) ? '\n' : char)).join('')
}
