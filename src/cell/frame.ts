/**
 * @file A frame: JSON for what is small, raw little-endian arrays for what is large.
 *
 *   bytes 0..3      H, length of the header, unsigned 32 bit little-endian
 *   bytes 4..4+H    UTF-8 JSON object, padded with spaces so that 4 + H is a multiple of 8
 *   the rest        the arrays named in the header's `tensors`, in that order, without gaps
 */
import { z } from 'zod'
import { requestError } from './wire-errors.ts'

export type Tensor = Int32Array | Float32Array

const headerSchema = z.looseObject({
  tensors: z.array(
    z.object({ name: z.string(), dtype: z.enum(['i32', 'f32']), length: z.number().int().nonnegative() }),
  ),
})

export interface Frame {
  /** The header without `tensors`; the reader validates it. */
  readonly header: Readonly<Record<string, unknown>>
  readonly tensors: ReadonlyMap<string, Tensor>
}

/** The bytes behind an array, without a copy. */
export const bytesOf = (array: ArrayBufferView): Uint8Array =>
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength)

/** Parts of a frame, to be written one after the other; the arrays are views, not copies. */
export function encodeFrame(
  header: Readonly<Record<string, unknown>>,
  tensors: Readonly<Record<string, Tensor>>,
): Uint8Array[] {
  const entries = Object.entries(tensors)
  const shapes = entries.map(([name, data]) => ({
    name,
    dtype: data instanceof Int32Array ? 'i32' : 'f32',
    length: data.length,
  }))
  const text = Buffer.from(JSON.stringify({ ...header, tensors: shapes }))
  const padded = Math.ceil((text.length + 4) / 8) * 8
  const head = Buffer.alloc(padded, ' ')
  head.writeUInt32LE(padded - 4, 0)
  text.copy(head, 4)
  return [head, ...entries.map(([, data]) => bytesOf(data))]
}

/**
 * Reads a frame. The arrays are copies.
 * @throws GyreError E_CELL_REQUEST when the bytes are not a frame.
 */
export function decodeFrame(bytes: Uint8Array): Frame {
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const headerBytes = view.length < 4 ? -1 : view.readUInt32LE(0)
  if (headerBytes < 0 || headerBytes > view.length - 4) {
    throw requestError(`a frame of ${view.length} bytes is shorter than its header says`)
  }
  const { tensors: shapes, ...header } = parseHeader(view.toString('utf8', 4, 4 + headerBytes))
  const tensors = new Map<string, Tensor>()
  let offset = 4 + headerBytes
  for (const { name, dtype, length } of shapes) {
    const end = offset + 4 * length
    if (end > view.length) throw requestError(`the frame ends inside its array "${name}"`)
    const copy = Uint8Array.prototype.slice.call(view, offset, end).buffer
    tensors.set(name, dtype === 'i32' ? new Int32Array(copy) : new Float32Array(copy))
    offset = end
  }
  if (offset !== view.length) throw requestError(`the frame has ${view.length - offset} bytes after its last array`)
  return { header, tensors }
}

function parseHeader(text: string): z.infer<typeof headerSchema> {
  try {
    return headerSchema.parse(JSON.parse(text))
  } catch (cause) {
    throw requestError(`the frame's header is not valid: ${String(cause)}`)
  }
}

/** @throws GyreError E_CELL_REQUEST when the frame has no int32 array of that name. */
export function int32Of(frame: Frame, name: string): Int32Array {
  const data = frame.tensors.get(name)
  if (!(data instanceof Int32Array)) throw requestError(`the frame has no int32 array "${name}"`)
  return data
}

/** @throws GyreError E_CELL_REQUEST when the frame has no float32 array of that name. */
export function float32Of(frame: Frame, name: string): Float32Array {
  const data = frame.tensors.get(name)
  if (!(data instanceof Float32Array)) throw requestError(`the frame has no float32 array "${name}"`)
  return data
}
