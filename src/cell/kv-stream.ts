/** @file Cached blocks as one long answer, a few at a time in memory on either side. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import type { Deadline } from './deadline.ts'
import { bytesOf } from './frame.ts'
import { CONTENT } from './protocol.ts'

/** What is in memory for each step of a transfer, twice. [bytes] */
const CHUNK_BYTES = 2 * 2 ** 20

const blocksPerChunk = (blockFloats: number): number => Math.max(1, Math.floor(CHUNK_BYTES / (4 * blockFloats)))

/**
 * Writes blocks in the order asked for. An error before the first is thrown; a later one cuts the connection, so that
 * the reader cannot take the beginning for the whole.
 */
export async function streamBlocks(
  response: ServerResponse,
  blocks: Int32Array,
  blockFloats: number,
  read: (blocks: Int32Array) => Promise<Float32Array>,
  deadline: Deadline,
): Promise<void> {
  const size = blocksPerChunk(blockFloats)
  let next: Promise<Float32Array> | undefined = read(blocks.subarray(0, size))
  let isStarted = false
  try {
    for (let at = 0; next !== undefined; at += size) {
      const data: Float32Array = await deadline.wait(next)
      // The engine reads on while this chunk is on its way.
      next = at + size < blocks.length ? read(blocks.subarray(at + size, at + 2 * size)) : undefined
      next?.catch(() => undefined)
      if (!isStarted) {
        response.writeHead(200, { 'content-type': CONTENT.raw, 'content-length': blocks.length * blockFloats * 4 })
        isStarted = true
      }
      if (!response.write(bytesOf(data))) await deadline.wait(drained(response))
      if (response.destroyed) return
    }
    response.end()
  } catch (error) {
    if (isStarted) response.destroy()
    throw error
  }
}

/** Resolves when more can be written, or never will be. */
async function drained(response: ServerResponse): Promise<void> {
  const over = new AbortController()
  const events = ['drain', 'close'].map((event) => once(response, event, { signal: over.signal }))
  for (const event of events) event.catch(() => undefined)
  await Promise.race(events)
  over.abort()
}

/**
 * Whole blocks from bytes cut anywhere. @param count blocks that are to come.
 * @throws Error when the bytes end inside a block, or are not `count` blocks.
 */
export async function* joinBlocks(
  bytes: AsyncIterable<Uint8Array>,
  count: number,
  blockFloats: number,
): AsyncGenerator<Float32Array, void, undefined> {
  const size = blocksPerChunk(blockFloats)
  let left = count
  let data = new Float32Array(0)
  let filled = 0
  const open = (): void => {
    data = new Float32Array(Math.min(size, left) * blockFloats)
    filled = 0
  }
  open()
  for await (const piece of bytes) {
    for (let at = 0; at < piece.length;) {
      if (left === 0) throw new Error(`more came than ${count} blocks`)
      const part = piece.subarray(at, at + data.byteLength - filled)
      new Uint8Array(data.buffer).set(part, filled)
      filled += part.length
      at += part.length
      if (filled < data.byteLength) continue
      left -= data.length / blockFloats
      yield data
      open()
    }
  }
  if (left > 0) throw new Error(`the blocks ended ${left} short of ${count}`)
}
