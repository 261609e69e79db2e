/** @file Cached blocks whose numbers say which weights and tokens they were computed from. */
import { GyreError } from '../../src/core/errors.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import { hashSeed } from '../../src/core/rng.ts'
import type { KvArrival, KvCache, KvLayout, KvOffer, KvSequence } from '../../src/ports/cell.ts'
import type { SimEngine } from './engine.ts'
import type { Surroundings } from './machines.ts'

const BLOCK_TOKENS = 4
/** [digest of the weights, hash of the tokens up to its end] */
const BLOCK_FLOATS = 2
const BLOCK_MS = 0.3

interface Pinned {
  readonly executionId: ExecutionId
  readonly tokenIds: readonly number[]
  readonly blocks: Int32Array
}

export class SimKv implements KvCache {
  readonly layout: KvLayout = { name: 'virtual', blockTokens: BLOCK_TOKENS, blockFloats: BLOCK_FLOATS }
  readonly #engine: SimEngine
  readonly #work: (ms: number) => Promise<void>
  readonly #around: Surroundings
  /** Whole blocks of the last context of each execution, all of the present weights. */
  readonly #cached = new Map<ExecutionId, readonly number[]>()
  readonly #fetched = new Set<ExecutionId>()
  #pinned: Pinned[] = []
  #serial = 0
  #names = 0
  /** +1 whenever the weights change. */
  #generation = 0

  constructor(engine: SimEngine, work: (ms: number) => Promise<void>, around: Surroundings) {
    this.#engine = engine
    this.#work = work
    this.#around = around
  }

  keep(executionId: ExecutionId, context: readonly number[]): void {
    this.#cached.set(executionId, context.slice(0, context.length - (context.length % BLOCK_TOKENS)))
  }

  /** Tokens of the prompt that need no computing. */
  cachedOf(executionId: ExecutionId, promptIds: Int32Array): number {
    const cached = this.#cached.get(executionId) ?? []
    let same = 0
    while (same < cached.length && cached[same] === promptIds[same]) same++
    const tokens = same - (same % BLOCK_TOKENS)
    if (tokens > 0 && this.#fetched.delete(executionId)) this.#around.chaos.count('kv-used')
    return tokens
  }

  /** The weights have changed. */
  drop(): void {
    this.#generation++
    this.#cached.clear()
    this.#fetched.clear()
    this.#pinned = []
  }

  async pin(executionIds: readonly ExecutionId[]): Promise<KvOffer> {
    await this.#work(BLOCK_MS)
    this.#serial++
    for (const executionId of executionIds) {
      const tokenIds = this.#cached.get(executionId) ?? []
      if (tokenIds.length === 0) continue
      this.#pinned = this.#pinned.filter((p) => p.executionId !== executionId)
      const blocks = Int32Array.from({ length: tokenIds.length / BLOCK_TOKENS }, () => this.#names++)
      this.#pinned.push({ executionId, tokenIds, blocks })
    }
    const wanted = new Set(executionIds)
    const sequences = this.#pinned
      .filter((p) => wanted.has(p.executionId))
      .map(({ executionId, tokenIds, blocks }) => ({ executionId, tokenIds: Int32Array.from(tokenIds), blocks }))
    return { layout: this.layout, policyVersion: this.#engine.policyVersion, serial: this.#serial, sequences }
  }

  async read(serial: number, blocks: Int32Array): Promise<Float32Array> {
    await this.#work(BLOCK_MS * blocks.length)
    if (serial !== this.#serial) throw gone()
    const out = new Float32Array(blocks.length * BLOCK_FLOATS)
    for (const [i, name] of blocks.entries()) {
      const pinned = this.#pinned.find((p) => p.blocks.includes(name))
      if (pinned === undefined) throw gone()
      out.set(blockOf(this.#engine.digest, pinned.tokenIds, pinned.blocks.indexOf(name)), i * BLOCK_FLOATS)
    }
    return out
  }

  async unpin(): Promise<void> {
    await this.#work(BLOCK_MS)
    this.#pinned = []
  }

  async accept(offer: KvOffer): Promise<KvArrival> {
    await this.#work(BLOCK_MS)
    const isOurs = offer.policyVersion === this.#engine.policyVersion && offer.layout.name === this.layout.name
    return new SimArrival(isOurs ? offer.sequences : [], {
      generation: this.#generation,
      present: () => this.#generation,
      take: (sequence, data) => this.#take(sequence, data),
    })
  }

  #take({ executionId, tokenIds, blocks }: KvSequence, data: Float32Array): void {
    for (let i = 0; i < blocks.length; i++) {
      const [digest, hash] = blockOf(this.#engine.digest, [...tokenIds], i)
      if (data[i * BLOCK_FLOATS] !== digest) this.#around.accuse(`blocks of ${executionId} are of other weights`)
      if (data[i * BLOCK_FLOATS + 1] !== hash) this.#around.accuse(`blocks of ${executionId} are of other tokens`)
    }
    this.#cached.set(executionId, [...tokenIds])
    this.#fetched.add(executionId)
    this.#around.chaos.count('kv-fetched')
  }
}

interface Receiver {
  readonly generation: number
  readonly present: () => number
  readonly take: (sequence: KvSequence, data: Float32Array) => void
}

class SimArrival implements KvArrival {
  readonly wanted: Int32Array
  readonly sequences: { readonly index: number; readonly after: number }[] = []
  readonly #offered: readonly KvSequence[]
  readonly #receiver: Receiver
  readonly #data: number[] = []
  #whole = 0

  constructor(offered: readonly KvSequence[], receiver: Receiver) {
    this.#offered = offered
    this.#receiver = receiver
    this.wanted = Int32Array.from(offered.flatMap((s) => [...s.blocks]))
    let after = 0
    for (const [index, s] of offered.entries()) {
      after += s.blocks.length
      this.sequences.push({ index, after })
    }
  }

  async write(data: Float32Array): Promise<void> {
    if (this.#receiver.generation !== this.#receiver.present()) throw gone()
    this.#data.push(...data)
    for (; this.#whole < this.sequences.length; this.#whole++) {
      const { index, after } = this.sequences[this.#whole] as { readonly index: number; readonly after: number }
      if (this.#data.length < after * BLOCK_FLOATS) return
      const sequence = this.#offered[index] as KvSequence
      const from = (after - sequence.blocks.length) * BLOCK_FLOATS
      this.#receiver.take(sequence, Float32Array.from(this.#data.slice(from, after * BLOCK_FLOATS)))
    }
  }

  close(): Promise<void> {
    return Promise.resolve()
  }
}

function blockOf(digest: number, tokenIds: readonly number[], index: number): readonly [number, number] {
  return [digest, hashSeed(...tokenIds.slice(0, (index + 1) * BLOCK_TOKENS)) % 65_536]
}

function gone(): GyreError {
  return new GyreError('the blocks are gone', { boundary: 'engine', code: 'E_ENGINE_KV_GONE', retryable: true })
}
