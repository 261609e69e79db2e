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
  const end = writeIds(digits, ids, 0)
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

/** @returns the offset after the last digit. */
function writeIds(bytes: Uint8Array, ids: Int32Array, start: number): number {
  let at = start
  for (const id of ids) {
    at = id < SIX_DIGITS ? writeSmall(bytes, id, at) : writeLarge(bytes, id, at)
    bytes[at++] = COMMA
  }
  return ids.length === 0 ? at : at - 1
}

/** At most six digits: two triples, the first without its zeros. */
function writeSmall(bytes: Uint8Array, id: number, start: number): number {
  let at = start
  let rest = id
  if (id >= 1000) {
    const thousands = Math.trunc(id / 1000)
    rest = id - thousands * 1000
    at = writeTriple(bytes, thousands, at)
    bytes[at] = TRIPLES[rest * 3] ?? 0
    bytes[at + 1] = TRIPLES[rest * 3 + 1] ?? 0
    bytes[at + 2] = TRIPLES[rest * 3 + 2] ?? 0
    return at + 3
  }
  return writeTriple(bytes, rest, at)
}

function writeTriple(bytes: Uint8Array, triple: number, start: number): number {
  let at = start
  if (triple >= 100) bytes[at++] = TRIPLES[triple * 3] ?? 0
  if (triple >= 10) bytes[at++] = TRIPLES[triple * 3 + 1] ?? 0
  bytes[at++] = TRIPLES[triple * 3 + 2] ?? 0
  return at
}

function writeLarge(bytes: Uint8Array, id: number, start: number): number {
  const digits = String(id)
  for (let i = 0; i < digits.length; i++) bytes[start + i] = digits.charCodeAt(i)
  return start + digits.length
}
