/** @file The cache of the embedded engine as its process sees it: blocks are the pages of the leading worker. */
import type { KvCache, KvLayout, KvOffer } from '../../../ports/cell.ts'
import type { EngineLink } from './engine-link.ts'
import type { CommandResult, KvCommand, KvRoom } from './messages.ts'

export function kvCache(link: EngineLink, layout: KvLayout): KvCache {
  const run = (command: KvCommand, transfer: readonly ArrayBuffer[] = []): Promise<CommandResult> =>
    link.command({ kind: 'kv', command }, transfer)
  return {
    layout,
    pin: async (executionIds) => (await run({ kind: 'pin', executionIds })) as KvOffer,
    read: async (serial, blocks) => (await run({ kind: 'read', serial, blocks })) as Float32Array,
    unpin: async () => {
      await run({ kind: 'unpin' })
    },
    accept: async (offer) => {
      const { ticket, wanted, sequences } = (await run({ kind: 'accept', offer })) as KvRoom
      return {
        wanted,
        sequences,
        write: async (data) => {
          const { buffer } = data
          await run({ kind: 'write', ticket, data }, buffer instanceof ArrayBuffer ? [buffer] : [])
        },
        close: async () => {
          await run({ kind: 'close', ticket })
        },
      }
    },
  }
}
