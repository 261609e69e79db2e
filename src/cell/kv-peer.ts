/** @file The pinned blocks of another cell, over its socket. */
import type { ExecutionId } from '../core/ids.ts'
import type { KvOffer } from '../ports/cell.ts'
import { CellConnection } from './connection.ts'
import type { Deadline } from './deadline.ts'
import { decodeOffer, encodeBlockRequest } from './kv-codec.ts'
import type { KvPeer } from './kv-handover.ts'
import { CONTENT } from './protocol.ts'

export class ConnectedKvPeer implements KvPeer {
  readonly #connection: CellConnection

  constructor(address: string, token: string) {
    this.#connection = new CellConnection(address, token)
  }

  async offer(executionIds: readonly ExecutionId[], deadline: Deadline, signal: AbortSignal): Promise<KvOffer> {
    const body = [Buffer.from(JSON.stringify({ executionIds }))]
    return decodeOffer((await this.#connection.call('pinned-kv', { deadline, signal, body })).body)
  }

  blocks(serial: number, blocks: Int32Array, deadline: Deadline, signal: AbortSignal): AsyncIterable<Uint8Array> {
    const body = encodeBlockRequest(serial, blocks)
    return this.#connection.bytes('kv-blocks', { deadline, signal, body, contentType: CONTENT.frame })
  }

  close(): Promise<void> {
    return this.#connection.close()
  }
}
