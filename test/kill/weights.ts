/** @file The weights of two checkpoints, side by side. */

/** Largest absolute difference of two weights of the same file layout; NaN when the layouts differ. Both hold F32. */
export function largestDifference(a: Buffer, b: Buffer): number {
  const [one, other] = [a, b].map(tensorBytes)
  if (one === undefined || other === undefined || one.length !== other.length) return Number.NaN
  let largest = 0
  for (let at = 0; at < one.length; at += 4) {
    const difference = Math.abs(one.readFloatLE(at) - other.readFloatLE(at))
    if (!(difference <= largest)) largest = difference
  }
  return largest
}

/** Behind an 8-byte length and a header of that many bytes. */
function tensorBytes(file: Buffer): Buffer {
  return file.subarray(8 + Number(file.readBigUInt64LE(0)))
}
