/** @file Token ids as JSON text. A context of a million ids goes to the server with every call, so this is the hot path. */
import { pagedMemory } from '../../../core/pages.ts'

const [ZERO, COMMA] = [0x30, 0x2c]
/** Digits of the largest id, and a comma. */
const MOST_BYTES = 11
/** Below it an id is written by hand, digit by digit. */
const SIX_DIGITS = 1_000_000

/** The three digits of every number below 1,000. */
const TRIPLES = Uint8Array.from({ length: 3000 }, (_, i) => {
  const triple = Math.trunc(i / 3)
  return ZERO + (Math.trunc(triple / 10 ** (2 - (i % 3))) % 10)
})

/**
 * JSON text of an object with token ids in it, as bytes: a list or a string of them would have to be made first.
 * @param ids None may be negative.
 */
export function bodyWithIds(key: string, ids: Int32Array, rest: Readonly<Record<string, unknown>>): Buffer {
  const before = `{${JSON.stringify(key)}:[`
  const after = `],${JSON.stringify(rest).slice(1)}`
  const digits = roomFor(ids.length * MOST_BYTES)
  const end = writeIds(digits, ids)
  const [head, tail] = [Buffer.byteLength(before), Buffer.byteLength(after)]
  const bytes = Buffer.from(pagedMemory(head + end + tail))
  bytes.write(before)
  bytes.set(digits.subarray(0, end), head)
  bytes.write(after, head + end)
  return bytes
}

/** Where digits are written: kept from call to call, since single bytes are slow to write in memory of its own. */
let scratch = new Uint8Array(2 ** 16)

function roomFor(bytes: number): Uint8Array {
  if (scratch.length < bytes) scratch = new Uint8Array(bytes * 2)
  return scratch
}

/**
 * Ids have at most six digits, nearly always: two triples, the first without its zeros. One plain loop: split into
 * functions, or with an iterator, it is several times slower once short and long contexts have gone through it.
 * @returns the offset after the last digit.
 */
function writeIds(bytes: Uint8Array, ids: Int32Array): number {
  const triples = TRIPLES
  const count = ids.length
  let at = 0
  for (let i = 0; i < count; i++) {
    const id = ids[i] as number
    if (id >= SIX_DIGITS) {
      at = writeLarge(bytes, id, at)
      bytes[at++] = COMMA
      continue
    }
    const thousands = (id / 1000) | 0
    const rest = (id - thousands * 1000) * 3
    if (thousands > 0) {
      const first = thousands * 3
      if (thousands >= 100) bytes[at++] = triples[first] as number
      if (thousands >= 10) bytes[at++] = triples[first + 1] as number
      bytes[at++] = triples[first + 2] as number
    }
    if (thousands > 0 || rest >= 300) bytes[at++] = triples[rest] as number
    if (thousands > 0 || rest >= 30) bytes[at++] = triples[rest + 1] as number
    bytes[at++] = triples[rest + 2] as number
    bytes[at++] = COMMA
  }
  return count === 0 ? 0 : at - 1
}

function writeLarge(bytes: Uint8Array, id: number, start: number): number {
  const digits = String(id)
  for (let i = 0; i < digits.length; i++) bytes[start + i] = digits.charCodeAt(i)
  return start + digits.length
}
