/** @file Typed arrays as BLOBs: 4-byte elements, little-endian on every machine, bit for bit (NaN payloads included). */
import { endianness } from 'node:os'

const IS_BIG_ENDIAN = endianness() === 'BE'

/** Bytes to bind. On little-endian machines a view, so the array must not change before it is written. */
export function toBlob(array: Int32Array | Float32Array): Buffer {
  const view = Buffer.from(array.buffer, array.byteOffset, array.byteLength)
  return IS_BIG_ENDIAN ? Buffer.from(view).swap32() : view
}

/** Copies, because the driver owns its buffer. */
function fromBlob(blob: ArrayBuffer): ArrayBuffer {
  const bytes = new Uint8Array(blob.byteLength)
  bytes.set(new Uint8Array(blob))
  if (IS_BIG_ENDIAN) Buffer.from(bytes.buffer).swap32()
  return bytes.buffer
}

export function toInt32(blob: ArrayBuffer): Int32Array {
  return new Int32Array(fromBlob(blob))
}

export function toFloat32(blob: ArrayBuffer): Float32Array {
  return new Float32Array(fromBlob(blob))
}
