/**
 * @file Caches on their way between engines: pages that are pinned for others to read, and pages kept for those that
 * arrive. Both hold their pages as residents do, so nothing can reuse one under them; both give way when a running
 * sequence needs room.
 */
import { GyreError, invariant } from '../../../core/errors.ts'
import type { Machine } from '../../../kernels/machine.ts'
import { pageFloats, readPages, writePages } from '../../../kernels/pages.ts'
import { type MemoryPlan, TILE } from '../../../kernels/plan.ts'
import type { ExecutionId } from '../../../core/ids.ts'
import type { KvLayout, KvOffer, KvSequence } from '../../../ports/cell.ts'
import type { KvCommand, KvRoom } from './messages.ts'
import type { PagePool } from './page-pool.ts'
import type { Residents } from './residents.ts'

interface Pin {
  readonly executionId: ExecutionId
  readonly serial: number
  /** One list for each sequence; each list is held. */
  readonly pages: readonly (readonly number[])[]
}

interface Arriving {
  readonly executionId: ExecutionId
  readonly tokenIds: Int32Array
  /** Held. */
  readonly pages: readonly number[]
  readonly after: number
}

interface Arrival {
  /** Where each wanted block goes. */
  readonly places: readonly number[]
  written: number
  /** Sequences that are not whole, in the order in which they will be. */
  waiting: Arriving[]
}

export function kvLayout(plan: MemoryPlan): KvLayout {
  const { layers, kvHeads, headDim } = plan.shape
  const name = `wasm-simd pages, ${layers} layers, ${kvHeads} heads of ${headDim}`
  return { name, blockTokens: TILE, blockFloats: pageFloats(plan) }
}

export class Handover {
  readonly #m: Machine
  readonly #pool: PagePool
  readonly #residents: Residents
  readonly #layout: KvLayout
  /** Oldest first. */
  #pins: Pin[] = []
  readonly #arrivals = new Map<number, Arrival>()
  #serial = 0
  #tickets = 0

  constructor(m: Machine, pool: PagePool, residents: Residents) {
    this.#m = m
    this.#pool = pool
    this.#residents = residents
    this.#layout = kvLayout(m.plan)
  }

  /**
   * @param policyVersion of the present weights; undefined while they have none, and no block can be told from another.
   * @throws GyreError E_ENGINE_KV_GONE
   */
  run(command: KvCommand, policyVersion: number | undefined): KvOffer | KvRoom | Float32Array | undefined {
    switch (command.kind) {
      case 'pin':
        return this.#pin(command.executionIds, policyVersion)
      case 'read':
        return this.#read(command.serial, command.blocks)
      case 'unpin':
        for (const pin of this.#pins.splice(0)) this.#release(pin)
        return undefined
      case 'accept':
        return this.#accept(command.offer, policyVersion)
      case 'write':
        this.#write(command.ticket, command.data)
        return undefined
      case 'close':
        this.#close(command.ticket)
        return undefined
      default:
        return command satisfies never
    }
  }

  #pin(executionIds: readonly ExecutionId[], policyVersion: number | undefined): KvOffer {
    const serial = ++this.#serial
    const offer = { layout: this.#layout, policyVersion: policyVersion ?? -1, serial }
    if (policyVersion === undefined) return { ...offer, sequences: [] }
    return { ...offer, sequences: executionIds.flatMap((id) => this.#pinOne(id, serial)) }
  }

  #pinOne(executionId: ExecutionId, serial: number): readonly KvSequence[] {
    const seen = new Set<number>()
    const sequences: KvSequence[] = []
    for (const { tokens, computed, pages } of this.#residents.of(executionId)) {
      const whole = pages.slice(0, Math.floor(computed / TILE))
      if (whole.every((page) => seen.has(page))) continue
      for (const page of whole) seen.add(page)
      const tokenIds = tokens.slice(0, whole.length * TILE)
      sequences.push({ executionId, tokenIds, blocks: Int32Array.from(whole) })
    }
    const pages = sequences.map(({ blocks }) => [...blocks])
    for (const list of pages) this.#pool.share(list)
    const [before, others] = partition(this.#pins, (pin) => pin.executionId === executionId)
    this.#pins = others
    before.forEach((pin) => this.#release(pin))
    if (pages.length > 0) this.#pins.push({ executionId, serial, pages })
    return sequences
  }

  #read(serial: number, blocks: Int32Array): Float32Array {
    const held = new Set(this.#pins.filter((pin) => pin.serial <= serial).flatMap((pin) => pin.pages.flat()))
    if (!blocks.every((block) => held.has(block))) throw kvGone('a block that was asked for is no longer pinned')
    return readPages(this.#m, blocks)
  }

  /** Keeps room for an offer. */
  #accept(offer: KvOffer, policyVersion: number | undefined): KvRoom {
    const ticket = ++this.#tickets
    const wanted: number[] = []
    const places: number[] = []
    const waiting: Arriving[] = []
    const sequences: { index: number; after: number }[] = []
    const isUsable = offer.layout.name === this.#layout.name && offer.policyVersion === policyVersion
    const local = new Map<number, number>()
    for (const [index, { executionId, tokenIds, blocks }] of isUsable ? offer.sequences.entries() : []) {
      if (tokenIds.length >= this.#m.plan.capacity.maxContext) continue
      const pages = [...this.#residents.prefixPages(tokenIds)]
      const isHere = pages.length === blocks.length
      const rest = isHere ? [] : [...blocks.subarray(pages.length)]
      const missing = rest.filter((block) => !local.has(block))
      // Held before room is made, or making it could free them.
      this.#pool.share(pages)
      if (!this.#residents.makeRoom(missing.length)) {
        this.#pool.release(pages)
        continue
      }
      for (const block of rest) {
        const known = local.get(block)
        if (known !== undefined) this.#pool.share([known])
        const page = known ?? this.#pool.take()
        invariant(page !== undefined, 'room was made for every block')
        pages.push(page)
        if (known !== undefined) continue
        local.set(block, page)
        wanted.push(block)
        places.push(page)
      }
      sequences.push({ index, after: wanted.length })
      if (isHere) this.#pool.release(pages)
      else waiting.push({ executionId, tokenIds, pages, after: wanted.length })
    }
    if (waiting.length > 0) this.#arrivals.set(ticket, { places, written: 0, waiting })
    return { ticket, wanted: Int32Array.from(wanted), sequences }
  }

  /** Fills the next wanted blocks. */
  #write(ticket: number, data: Float32Array): void {
    const arrival = this.#arrivals.get(ticket)
    if (arrival === undefined) throw kvGone('the room for these blocks was given up')
    const to = arrival.written + data.length / this.#layout.blockFloats
    invariant(Number.isInteger(to) && to <= arrival.places.length, 'blocks arrive whole, and only those wanted')
    writePages(this.#m, arrival.places.slice(arrival.written, to), data)
    arrival.written = to
    const [whole, waiting] = partition(arrival.waiting, ({ after }) => after <= to)
    arrival.waiting = waiting
    if (waiting.length === 0) this.#arrivals.delete(ticket)
    for (const { executionId, tokenIds, pages } of whole) this.#residents.adopt(executionId, tokenIds, pages)
  }

  /** Gives back what has not become whole. */
  #close(ticket: number): void {
    for (const { pages } of this.#arrivals.get(ticket)?.waiting ?? []) this.#pool.release(pages)
    this.#arrivals.delete(ticket)
  }

  /** Lets go of the oldest pin, or else the oldest arrival. @returns false when there is nothing to let go of. */
  giveWay(): boolean {
    const pin = this.#pins.shift()
    if (pin !== undefined) {
      this.#release(pin)
      return true
    }
    const [ticket] = this.#arrivals.keys()
    if (ticket === undefined) return false
    this.#close(ticket)
    return true
  }

  /** The weights have changed: what is pinned or on its way means nothing now. */
  drop(): void {
    while (this.giveWay());
  }

  #release(pin: Pin): void {
    for (const pages of pin.pages) this.#pool.release(pages)
  }
}

function partition<T>(all: readonly T[], isFirst: (value: T) => boolean): readonly [T[], T[]] {
  return [all.filter(isFirst), all.filter((value) => !isFirst(value))]
}

function kvGone(why: string): GyreError {
  return new GyreError(`the cache blocks are gone: ${why}`, { boundary: 'engine', code: 'E_ENGINE_KV_GONE' })
}
