/** @file Offers of cached blocks, and requests for blocks, as frames. */
import { executionId } from '../core/ids.ts'
import type { KvOffer } from '../ports/cell.ts'
import { decodeFrame, encodeFrame, int32Of } from './frame.ts'
import { kvBlocksSchema, kvOfferSchema } from './protocol.ts'
import { requestError } from './wire-errors.ts'

/** The token ids and the blocks of all sequences lie behind one another, in their order. */
export function encodeOffer({ layout, policyVersion, serial, sequences }: KvOffer): Uint8Array[] {
  const heads = sequences.map((s) => ({ executionId: s.executionId, blocks: s.blocks.length }))
  return encodeFrame(
    { layout, policyVersion, serial, sequences: heads },
    { tokenIds: joined(sequences.map((s) => s.tokenIds)), blocks: joined(sequences.map((s) => s.blocks)) },
  )
}

/** @throws GyreError E_CELL_REQUEST */
export function decodeOffer(bytes: Uint8Array): KvOffer {
  const frame = decodeFrame(bytes)
  const parsed = kvOfferSchema.safeParse(frame.header)
  if (!parsed.success) throw requestError(`the offer of cached blocks is not valid: ${parsed.error.message}`)
  const { layout, policyVersion, serial, sequences: heads } = parsed.data
  const [tokenIds, blocks] = [int32Of(frame, 'tokenIds'), int32Of(frame, 'blocks')]
  const total = heads.reduce((sum, head) => sum + head.blocks, 0)
  if (blocks.length !== total || tokenIds.length !== total * layout.blockTokens) {
    throw requestError(`an offer of ${total} blocks came with ${blocks.length}, and ${tokenIds.length} token ids`)
  }
  let at = 0
  const sequences = heads.map((head) => {
    const [from, to] = [at, (at += head.blocks)]
    return {
      executionId: executionId(head.executionId),
      tokenIds: tokenIds.slice(from * layout.blockTokens, to * layout.blockTokens),
      blocks: blocks.slice(from, to),
    }
  })
  return { layout, policyVersion, serial, sequences }
}

export const encodeBlockRequest = (serial: number, blocks: Int32Array): Uint8Array[] =>
  encodeFrame({ serial }, { blocks })

/** @throws GyreError E_CELL_REQUEST */
export function decodeBlockRequest(bytes: Uint8Array): { readonly serial: number; readonly blocks: Int32Array } {
  const frame = decodeFrame(bytes)
  const parsed = kvBlocksSchema.safeParse(frame.header)
  if (!parsed.success) throw requestError(`the request for cached blocks is not valid: ${parsed.error.message}`)
  const blocks = int32Of(frame, 'blocks')
  if (blocks.length === 0) throw requestError('the request for cached blocks names none')
  return { serial: parsed.data.serial, blocks }
}

function joined(arrays: readonly Int32Array[]): Int32Array {
  const all = new Int32Array(arrays.reduce((sum, a) => sum + a.length, 0))
  let at = 0
  for (const array of arrays) {
    all.set(array, at)
    at += array.length
  }
  return all
}
