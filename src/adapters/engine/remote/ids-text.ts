/** @file Token ids as JSON text. A context of a million ids goes to the server with every call, so this is the hot path. */

const [ZERO, COMMA] = [0x30, 0x2c]
/** Digits of the largest id, and a comma. */
const MOST_BYTES = 11

/** The ids without brackets, such as `1,22,333`. None may be negative. */
export function idsText(ids: Int32Array): string {
  const bytes = Buffer.allocUnsafe(ids.length * MOST_BYTES)
  let at = 0
  for (const id of ids) {
    at += digitsOf(id)
    let [rest, place] = [id, at]
    do {
      const tenth = Math.trunc(rest / 10)
      bytes[--place] = ZERO + rest - tenth * 10
      rest = tenth
    } while (rest > 0)
    bytes[at++] = COMMA
  }
  return bytes.toString('latin1', 0, Math.max(0, at - 1))
}

function digitsOf(id: number): number {
  let [digits, bound] = [1, 10]
  for (; id >= bound; bound *= 10) digits++
  return digits
}
