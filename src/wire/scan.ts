/**
 * @file Where the elements of a conversation stand in the bytes of a body, without reading them.
 *
 * It follows strings and brackets only, and trusts nothing: whoever uses the pieces has to parse each of them. A body
 * that is written in an unusual way has no layout, and is then read as a whole.
 */

const [QUOTE, BACKSLASH, COMMA, COLON] = [0x22, 0x5c, 0x2c, 0x3a]
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d]

/** All offsets in bytes from the start of the body. */
export interface Span {
  readonly start: number
  /** Of the byte after the last one. */
  readonly end: number
}

/** The offset after the bracket that opens the conversation; undefined when it is not found in the usual way. */
export function conversationStart(body: Uint8Array, field: string): number | undefined {
  let at = skipBlanks(body, 0)
  if (body[at] !== OPEN_OBJECT) return undefined
  at = skipBlanks(body, at + 1)
  for (;;) {
    const key = keyAt(body, at)
    if (key === undefined) return undefined
    at = skipBlanks(body, key.valueStart)
    if (key.name === field) return body[at] === OPEN_LIST ? at + 1 : undefined
    at = skipBlanks(body, skipValue(body, at))
    if (body[at] !== COMMA) return undefined
    at = skipBlanks(body, at + 1)
  }
}

/**
 * The elements of a list from `from` on, which is after its opening bracket or after one of its elements.
 * @returns undefined when the list is not closed or not a list.
 */
export function elementsFrom(
  body: Uint8Array,
  from: number,
  isFirst: boolean,
): { readonly elements: readonly Span[]; readonly close: number } | undefined {
  const elements: Span[] = []
  let at = skipBlanks(body, from)
  if (body[at] === CLOSE_LIST) return { elements, close: at }
  if (!isFirst) {
    if (body[at] !== COMMA) return undefined
    at = skipBlanks(body, at + 1)
  }
  for (;;) {
    const end = skipValue(body, at)
    if (end === at || end > body.length) return undefined
    elements.push({ start: at, end })
    at = skipBlanks(body, end)
    if (body[at] === CLOSE_LIST) return { elements, close: at }
    if (body[at] !== COMMA) return undefined
    at = skipBlanks(body, at + 1)
  }
}

/** True when the rest of the body after the conversation ends it and does not name the conversation again. */
export function endsBody(body: Uint8Array, afterList: number, field: string): boolean {
  let at = skipBlanks(body, afterList)
  while (body[at] === COMMA) {
    const key = keyAt(body, skipBlanks(body, at + 1))
    if (key === undefined || key.name === field) return false
    const start = skipBlanks(body, key.valueStart)
    const end = skipValue(body, start)
    if (end === start) return false
    at = skipBlanks(body, end)
  }
  return body[at] === CLOSE_OBJECT && skipBlanks(body, at + 1) === body.length
}

/** A key without escapes and the offset after its colon. */
function keyAt(body: Uint8Array, at: number): { readonly name: string; readonly valueStart: number } | undefined {
  if (body[at] !== QUOTE) return undefined
  const end = skipString(body, at)
  if (end > body.length) return undefined
  const name = body.subarray(at + 1, end - 1)
  if (name.length > 64 || name.includes(BACKSLASH)) return undefined
  const colon = skipBlanks(body, end)
  return body[colon] === COLON ? { name: String.fromCharCode(...name), valueStart: colon + 1 } : undefined
}

function skipBlanks(body: Uint8Array, from: number): number {
  let at = from
  for (let byte = body[at]; byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09; byte = body[at]) at++
  return at
}

/** The offset after the value at `from`; `from` itself when there is none; beyond the body when it does not end. */
function skipValue(body: Uint8Array, from: number): number {
  const first = body[from]
  if (first === QUOTE) return skipString(body, from)
  if (first === OPEN_LIST || first === OPEN_OBJECT) return skipNested(body, from)
  let at = from
  for (; at < body.length; at++) {
    const byte = body[at]
    if (byte === COMMA || byte === CLOSE_LIST || byte === CLOSE_OBJECT || byte === undefined || byte <= 0x20) break
  }
  return at
}

function skipNested(body: Uint8Array, from: number): number {
  let depth = 0
  for (let at = from; at < body.length;) {
    const byte = body[at]
    if (byte === QUOTE) {
      at = skipString(body, at)
      continue
    }
    at++
    if (byte === OPEN_LIST || byte === OPEN_OBJECT) depth++
    else if ((byte === CLOSE_LIST || byte === CLOSE_OBJECT) && --depth === 0) return at
  }
  return body.length + 1
}

function skipString(body: Uint8Array, from: number): number {
  for (let at = from + 1; at < body.length; at++) {
    const byte = body[at]
    if (byte === BACKSLASH) at++
    else if (byte === QUOTE) return at + 1
  }
  return body.length + 1
}
