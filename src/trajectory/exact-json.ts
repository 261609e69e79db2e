/**
 * @file JSON as it was written: numbers that a double cannot hold stay apart.
 *
 * `JSON.parse` reads 12345678901234567890 and 12345678901234567891 as one number, -0 as 0 and 1e999 as infinity. Two
 * turns that differ only there are different turns, so such numbers are kept as text behind a mark.
 */
import type { Json } from '../core/items.ts'

/** Leads the text of a number that a double cannot hold. No text of a conversation begins so by accident. */
const MARK = '\u0000#'
/** Whether any number may be one that a double cannot hold. Texts inside strings may raise it in vain. */
const SUSPECT = /[\d.]{16}|\d[eE][+-]?\d{3}|-0/
const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g
const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/

/** JSON with sorted keys and no blanks compares by content; deeper values than this do not. [levels] */
export const MAX_DEPTH = 256

/** A decimal number as sign, digits and exponent, so that `5000.0`, `5e3` and `5000` are one text; undefined for other text. */
function decimalForm(text: string): string | undefined {
  const [, sign = '', whole = '', fraction = '', exponent = '0'] = DECIMAL.exec(text) ?? []
  const digits = whole + fraction
  if (digits === '') return undefined
  let from = 0
  while (digits[from] === '0') from++
  if (from === digits.length) return `${sign}0`
  let to = digits.length
  while (digits[to - 1] === '0') to--
  return `${sign}${digits.slice(from, to)}e${Number(exponent) - fraction.length + digits.length - to}`
}

/** The number itself where a double holds it, else its decimal form behind the mark, as JSON. */
function exactNumber(text: string): string {
  const exact = decimalForm(text)
  const isHeld = exact === undefined || exact === decimalForm(JSON.stringify(Number(text)))
  return isHeld ? text : JSON.stringify(MARK + exact)
}

/** Where the string that begins at `start` ends. The text is known to be JSON. */
function stringEnd(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let slashes = 0
    while (text[end - 1 - slashes] === '\\') slashes++
    if (slashes % 2 === 0) return end
  }
  return text.length
}

/** The same JSON with every number that a double cannot hold as a marked string. */
function withExactNumbers(text: string): string {
  const parts: string[] = []
  for (let at = 0; at < text.length;) {
    const quote = text.indexOf('"', at)
    const outside = text.slice(at, quote < 0 ? text.length : quote)
    parts.push(outside.replace(NUMBER, exactNumber))
    if (quote < 0) break
    const end = stringEnd(text, quote) + 1
    parts.push(text.slice(quote, end))
    at = end
  }
  return parts.join('')
}

function parsed(text: string): Json | undefined {
  try {
    return JSON.parse(text) as Json
  } catch {
    return undefined
  }
}

/** JSON as JavaScript reads it, and as it was written; undefined when the text is not JSON. */
export function parseBoth(text: string): { readonly rounded: Json; readonly exact: Json } | undefined {
  const rounded = parsed(text)
  if (rounded === undefined) return undefined
  const exact = SUSPECT.test(text) ? parsed(withExactNumbers(text)) : rounded
  return { rounded, exact: exact ?? rounded }
}

/** The number a scalar stands for, also when it is written as text; undefined when it stands for none. */
function numberOf(value: Json): string | undefined {
  if (typeof value === 'number') return decimalForm(JSON.stringify(value))
  if (typeof value !== 'string') return undefined
  return value.startsWith(MARK) ? value.slice(MARK.length) : decimalForm(value.trim())
}

/** True when both stand for the same number. */
export function sameNumber(a: Json, b: Json): boolean {
  const number = numberOf(a)
  return number !== undefined && number === numberOf(b)
}
