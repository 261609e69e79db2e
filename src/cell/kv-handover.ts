/**
 * @file Cached blocks between cells: what this one has pinned for others, for how long, and what it is fetching.
 *
 * A hand-over is never needed: whatever fails, the tokens are computed again. So nothing here outlives its time: a pin
 * ends by itself, a fetch ends with its call, and a generation waits for a fetch no longer than WAIT_MS.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { GyreError } from '../core/errors.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { CellEngine, FetchedKv, KvArrival, KvOffer, KvSequence, PinnedKv } from '../ports/cell.ts'
import type { Deadline } from './deadline.ts'
import { joinBlocks } from './kv-stream.ts'

/** Another cell, as a reader of its pinned blocks. */
export interface KvPeer {
  offer(executionIds: readonly ExecutionId[], deadline: Deadline, signal: AbortSignal): Promise<KvOffer>
  /** Their bytes, cut anywhere. */
  blocks(serial: number, blocks: Int32Array, deadline: Deadline, signal: AbortSignal): AsyncIterable<Uint8Array>
  close(): Promise<void>
}

/** Longest wait of a generation for blocks on their way; computing a context again rarely takes longer. [ms] */
const WAIT_MS = 3000
const NOTHING: FetchedKv = { executions: 0, tokens: 0, bytes: 0 }

interface Arriving {
  readonly promise: Promise<void>
  readonly resolve: () => void
}

export class KvHandover {
  readonly #engine: CellEngine
  readonly #connect: (address: string) => KvPeer
  #offer: KvOffer | undefined
  #expiry: NodeJS.Timeout | undefined
  #expiresAt = 0
  readonly #arriving = new Map<ExecutionId, Arriving>()
  readonly #fetches = new Set<AbortController>()

  constructor(engine: CellEngine, connect: (address: string) => KvPeer) {
    this.#engine = engine
    this.#connect = connect
  }

  async pin(executionIds: readonly ExecutionId[], ttlMs: number): Promise<readonly PinnedKv[]> {
    const { kv } = this.#engine
    if (kv === undefined) return []
    const offer = await kv.pin(executionIds)
    const again = new Set(executionIds)
    const before = this.#offer?.policyVersion === offer.policyVersion ? this.#offer.sequences : []
    this.#offer = { ...offer, sequences: [...before.filter((s) => !again.has(s.executionId)), ...offer.sequences] }
    this.#expireAfter(ttlMs)
    return executionIds.flatMap((executionId) => {
      const own = offer.sequences.filter((s) => s.executionId === executionId)
      if (own.length === 0) return []
      const distinct = new Set(own.flatMap((s) => [...s.blocks]))
      const tokens = Math.max(...own.map((s) => s.tokenIds.length))
      return [{ executionId, tokens, bytes: distinct.size * kv.layout.blockFloats * 4 }]
    })
  }

  /** What is pinned of these executions. */
  offer(executionIds: readonly ExecutionId[]): KvOffer {
    const wanted = new Set(executionIds)
    const { kv, policyVersion } = this.#engine
    const layout = kv?.layout ?? { name: 'none', blockTokens: 1, blockFloats: 1 }
    const offer = this.#offer ?? { layout, policyVersion, serial: 0, sequences: [] }
    return { ...offer, sequences: offer.sequences.filter((s) => wanted.has(s.executionId)) }
  }

  /** Ends every pin. */
  async release(): Promise<void> {
    clearTimeout(this.#expiry)
    this.#expiresAt = 0
    if (this.#offer === undefined) return
    this.#offer = undefined
    await this.#engine.kv?.unpin()
  }

  #expireAfter(ttlMs: number): void {
    this.#expiresAt = Math.max(this.#expiresAt, performance.now() + ttlMs)
    clearTimeout(this.#expiry)
    // A failing engine answers its other calls too; here nobody listens.
    const end = (): void => void this.release().catch(() => undefined)
    this.#expiry = setTimeout(end, this.#expiresAt - performance.now()).unref()
  }

  /**
   * Takes what another cell has pinned of these executions.
   * @param check throws when the command no longer holds.
   * @throws GyreError E_CELL_UNREACHABLE, E_CELL_TIMEOUT, E_TRANSFER_LAYOUT, E_TRANSFER_CANCELLED, E_ENGINE_KV_GONE.
   */
  async fetch(
    from: string,
    executionIds: readonly ExecutionId[],
    deadline: Deadline,
    check: () => void,
  ): Promise<FetchedKv> {
    if (this.#engine.kv === undefined) return NOTHING
    const stop = new AbortController()
    const timer = setTimeout(() => stop.abort(deadline.error(true)), deadline.remainingMs())
    const own = new Map(executionIds.map((id) => [id, arriving()]))
    for (const [id, entry] of own) this.#arriving.set(id, entry)
    this.#fetches.add(stop)
    const peer = this.#connect(from)
    try {
      return await deadline.wait(this.#take(peer, from, own, { deadline, check, signal: stop.signal }))
    } finally {
      clearTimeout(timer)
      this.#fetches.delete(stop)
      stop.abort(cancelled())
      for (const [id, entry] of own) {
        entry.resolve()
        if (this.#arriving.get(id) === entry) this.#arriving.delete(id)
      }
      await peer.close()
    }
  }

  async #take(
    peer: KvPeer,
    from: string,
    own: ReadonlyMap<ExecutionId, Arriving>,
    { deadline, check, signal }: { deadline: Deadline; check: () => void; signal: AbortSignal },
  ): Promise<FetchedKv> {
    const { kv, policyVersion } = this.#engine
    const offer = await peer.offer([...own.keys()], deadline, signal)
    check()
    if (kv === undefined || offer.sequences.length === 0 || offer.policyVersion !== policyVersion) return NOTHING
    if (offer.layout.name !== kv.layout.name) throw otherLayout(from, offer.layout.name, kv.layout.name)
    const arrival = await kv.accept(offer)
    try {
      const progress = new Progress(offer, arrival, (id) => own.get(id)?.resolve())
      const { blockFloats } = kv.layout
      if (arrival.wanted.length > 0) {
        const bytes = peer.blocks(offer.serial, arrival.wanted, deadline, signal)
        let writing = Promise.resolve()
        for await (const data of joinBlocks(bytes, arrival.wanted.length, blockFloats)) {
          await writing
          check()
          const blocks = data.length / blockFloats
          // The next ones are read while these are written.
          writing = arrival.write(data).then(() => progress.add(blocks))
          writing.catch(() => undefined)
        }
        await writing
      }
      return progress.fetched(blockFloats)
    } finally {
      await arrival.close()
    }
  }

  /** The wait of a generation for blocks of its execution; undefined when none are on their way. */
  arrivalOf(executionId: ExecutionId): ((signal: AbortSignal) => Promise<void>) | undefined {
    const entry = this.#arriving.get(executionId)
    if (entry === undefined) return undefined
    return async (outer) => {
      const over = new AbortController()
      const signal = AbortSignal.any([outer, over.signal])
      await Promise.race([entry.promise, sleep(WAIT_MS, undefined, { signal }).catch(() => undefined)])
      over.abort()
    }
  }

  /** Ends every fetch that runs. */
  cancelFetches(): void {
    for (const stop of this.#fetches) stop.abort(cancelled())
  }
}

/** Which executions are whole, as blocks come in. */
class Progress {
  readonly #offer: KvOffer
  readonly #arrival: KvArrival
  readonly #onWhole: (executionId: ExecutionId) => void
  #blocks = 0

  constructor(offer: KvOffer, arrival: KvArrival, onWhole: (executionId: ExecutionId) => void) {
    this.#offer = offer
    this.#arrival = arrival
    this.#onWhole = onWhole
    this.add(0)
  }

  add(blocks: number): void {
    this.#blocks += blocks
    const late = this.#arrival.sequences.filter(({ after }) => after > this.#blocks)
    const waiting = new Set(late.map(({ index }) => this.#offer.sequences[index]?.executionId))
    for (const { executionId } of this.#offer.sequences) if (!waiting.has(executionId)) this.#onWhole(executionId)
  }

  fetched(blockFloats: number): FetchedKv {
    const taken = this.#arrival.sequences.flatMap(({ index }) => this.#offer.sequences[index] ?? [])
    const longest = new Map<ExecutionId, number>()
    for (const s of taken as readonly KvSequence[]) {
      longest.set(s.executionId, Math.max(longest.get(s.executionId) ?? 0, s.tokenIds.length))
    }
    const tokens = [...longest.values()].reduce((sum, n) => sum + n, 0)
    return { executions: longest.size, tokens, bytes: this.#blocks * blockFloats * 4 }
  }
}

function arriving(): Arriving {
  let settle: (() => void) | undefined
  const promise = new Promise<void>((done) => (settle = done))
  return { promise, resolve: () => settle?.() }
}

function cancelled(): GyreError {
  return new GyreError('the fetch of cached blocks was ended: the cell left rollout', {
    boundary: 'transfer',
    code: 'E_TRANSFER_CANCELLED',
    retryable: true,
  })
}

function otherLayout(from: string, theirs: string, ours: string): GyreError {
  return new GyreError(`the cached blocks of ${from} are of "${theirs}", this cell has "${ours}"`, {
    boundary: 'transfer',
    code: 'E_TRANSFER_LAYOUT',
  })
}
