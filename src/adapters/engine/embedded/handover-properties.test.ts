import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { SHAPE } from '../../../../test/support/embedded-engines.ts'
import { hasCode } from '../../../core/errors.ts'
import { type ExecutionId, executionId } from '../../../core/ids.ts'
import { createMachine, type Machine } from '../../../kernels/machine.ts'
import { pageFloats, readPages, writePages } from '../../../kernels/pages.ts'
import { planMemory, TILE } from '../../../kernels/plan.ts'
import { allocateMemory, compileKernels, instantiateKernels } from '../../../kernels/wasm.ts'
import type { KvOffer } from '../../../ports/cell.ts'
import { Handover } from './handover.ts'
import type { KvRoom } from './messages.ts'
import { PagePool } from './page-pool.ts'
import { type Resident, Residents } from './residents.ts'

const SLOTS = 2
const CONTEXT = 64
const capacity = { threads: 1, slots: SLOTS, maxContext: CONTEXT, maxTrainTokens: 64, stepRows: SLOTS + 16 }
const plan = planMemory(SHAPE, capacity)
const kernels = compileKernels(readFileSync(resolve(import.meta.dirname, '../../../../dist/kernels/engine.wasm')))
const IDS = ['x0', 'x1', 'x2'].map(executionId)

/** What a page of these tokens, and of all before them, would hold. */
function signature(tokens: Int32Array, end: number): number {
  let hash = end
  for (let i = 0; i < end; i++) hash = (hash * 31 + (tokens[i] ?? 0) + 1) % 1_000_003
  return hash
}

/** The cache of one engine, whose pages hold signatures instead of keys and values. */
class Cache {
  readonly machine: Machine
  readonly pool = new PagePool(plan.sample.pages)
  readonly residents: Residents
  readonly handover: Handover
  running: Resident[] = []
  offer: KvOffer | undefined
  room: { readonly offer: KvOffer; readonly room: KvRoom; written: number } | undefined

  constructor() {
    const memory = allocateMemory(plan.bytes)
    this.machine = createMachine(instantiateKernels(kernels, memory), plan, memory, 0)
    this.residents = new Residents(this.machine, this.pool, () => this.handover.giveWay())
    this.handover = new Handover(this.machine, this.pool, this.residents)
  }

  start(id: ExecutionId, prompt: Int32Array): void {
    if (this.running.length < SLOTS) this.running.push(this.residents.start(id, prompt, this.residents.find(prompt)))
  }

  advance(index: number, rows: number): void {
    const r = this.running[index % Math.max(1, this.running.length)]
    if (r === undefined) return
    // A token past the prompt, so that sequences grow as in sampling.
    if (r.length < CONTEXT && r.computed >= r.length - 1) r.tokens[r.length++] = rows
    const to = Math.min(r.length, r.computed + rows)
    this.residents.reserve(r, to)
    for (let page = Math.floor(r.computed / TILE); page < Math.floor(to / TILE); page++) {
      const value = signature(r.tokens, (page + 1) * TILE)
      writePages(this.machine, [r.pages[page] ?? -1], new Float32Array(pageFloats(plan)).fill(value))
    }
    r.computed = to
  }

  retire(index: number): void {
    const r = this.running[index % Math.max(1, this.running.length)]
    if (r !== undefined) r.isRunning = false
    this.running = this.running.filter((other) => other !== r)
  }

  dropWeights(): void {
    this.residents.drop()
    this.handover.drop()
  }

  /** Whole pages in use that do not hold what their tokens say. */
  wrongPages(): readonly number[] {
    return [...this.running, ...IDS.flatMap((id) => this.residents.of(id))].flatMap((r) => {
      const whole = r.pages.slice(0, Math.floor(r.computed / TILE))
      return whole.filter((page, i) => {
        const value = signature(r.tokens, (i + 1) * TILE)
        return readPages(this.machine, [page]).some((found) => found !== value)
      })
    })
  }

  /** Pages still held once nothing runs and nothing is cached. */
  lostPages(): number {
    for (const r of this.running) r.isRunning = false
    this.dropWeights()
    return plan.sample.pages - this.pool.free
  }
}

function fetchSome(from: Cache, to: Cache, blocks: number): void {
  const open = to.room
  if (open === undefined) {
    if (from.offer !== undefined)
      to.room = {
        offer: from.offer,
        room: to.handover.run({ kind: 'accept', offer: from.offer }, 0) as KvRoom,
        written: 0,
      }
    return
  }
  const { offer, room } = open
  const wanted = room.wanted.subarray(open.written, open.written + blocks)
  try {
    if (wanted.length > 0) {
      const data = from.handover.run({ kind: 'read', serial: offer.serial, blocks: wanted }, 0) as Float32Array
      to.handover.run({ kind: 'write', ticket: room.ticket, data }, 0)
      open.written += wanted.length
      return
    }
  } catch (error) {
    if (!hasCode(error, 'E_ENGINE_KV_GONE')) throw error
  }
  to.handover.run({ kind: 'close', ticket: room.ticket }, 0)
  to.room = undefined
}

const OPERATIONS = [
  'start',
  'start',
  'advance',
  'advance',
  'advance',
  'retire',
  'pin',
  'unpin',
  'fetch',
  'fetch',
  'drop',
] as const

test('in any history no page is lost, held twice by mistake, or holds what it should not', () => {
  const step = fc.tuple(fc.constantFrom(...OPERATIONS), fc.nat(1), fc.nat(2), fc.nat(40))
  fc.assert(
    fc.property(fc.array(step, { minLength: 20, maxLength: 150, size: 'max' }), (steps) => {
      const caches = [new Cache(), new Cache()] as const
      for (const [operation, side, which, size] of steps) {
        const cache = caches[side === 0 ? 0 : 1]
        const other = caches[side === 0 ? 1 : 0]
        if (operation === 'start') {
          const shared = size % 3 === 0 ? 0 : which
          // Few different beginnings, so that prefixes are shared, continued and left.
          const prompt = Int32Array.from({ length: 2 + size }, (_, i) => (i < 24 ? shared : which + (i % 2)))
          cache.start(IDS[which] ?? executionId('x'), prompt)
        } else if (operation === 'advance') cache.advance(which, 1 + size)
        else if (operation === 'retire') cache.retire(which)
        else if (operation === 'pin') {
          cache.offer = cache.handover.run({ kind: 'pin', executionIds: IDS.slice(0, 1 + which) }, 0) as KvOffer
        } else if (operation === 'unpin') cache.handover.run({ kind: 'unpin' }, 0)
        else if (operation === 'fetch') fetchSome(other, cache, 1 + (size % 4))
        else if (size === 0) cache.dropWeights()
        expect(caches.map((c) => c.wrongPages())).toEqual([[], []])
      }
      expect(caches.map((c) => c.lostPages())).toEqual([0, 0])
    }),
    { numRuns: 200 },
  )
})
