/** @file A remote server as an Engine: bounds, versions, cancellation and ends are the same for every protocol. */
import { randomUUID } from 'node:crypto'
import type { EngineId } from '../../../core/ids.ts'
import type { Engine, GenerateEvent, GenerateRequest, SamplingParams } from '../../../ports/engine.ts'
import { badRequest, cancelled, closed, malformed, overlong, unfinished } from './failures.ts'
import type { StreamShape, Wire, WireChunk, WireFinish } from './wire.ts'
import { VersionStamps } from './versions.ts'
import type { Versions } from './versions.ts'

/** What the start-up checks found. */
export interface RemoteCapabilities {
  /** The route that generates. */
  readonly route: string
  readonly stream: StreamShape
  /**
   * `raw`: at temperature 1, before truncation. `scaled`: they follow the temperature. `truncated`: they leave out what
   * top-p and top-k cut. `unverified`: the probe's tokens were too certain to tell.
   */
  readonly logprobs: 'raw' | 'scaled' | 'truncated' | 'unverified'
  /** `positional`: a draw depends on seed and position, so a generation resumed elsewhere goes on as it would have. */
  readonly seeding: 'positional' | 'per-call'
  /** [tokens] */
  readonly maxContext: number
  /** The server's name for its weights; undefined when it has none. */
  readonly weightLabel: string | undefined
  /** True when every answer says which weights made it. */
  readonly reportsVersions: boolean
}

export interface RemoteEngine extends Engine {
  readonly capabilities: RemoteCapabilities
  /** Ends running generations and every connection. */
  close(): Promise<void>
}

interface RemoteEngineParts {
  readonly id: EngineId
  readonly wire: Wire
  readonly versions: Versions
  readonly capabilities: RemoteCapabilities
  readonly vocabSize: number | undefined
}

export function createRemoteEngine(parts: RemoteEngineParts): RemoteEngine {
  return new WiredEngine(parts)
}

/** Unique, and as long as every other: a server aborts whatever begins with the id it is given. */
export function freshRequestId(): string {
  return `gyre-${randomUUID().replaceAll('-', '')}`
}

class WiredEngine implements RemoteEngine {
  readonly id: EngineId
  readonly capabilities: RemoteCapabilities
  readonly #wire: Wire
  readonly #versions: Versions
  readonly #vocabSize: number | undefined
  readonly #running = new Set<AbortController>()
  readonly #farewells = new Set<Promise<void>>()
  #isClosed = false

  constructor({ id, wire, versions, capabilities, vocabSize }: RemoteEngineParts) {
    this.id = id
    this.capabilities = capabilities
    this.#wire = wire
    this.#versions = versions
    this.#vocabSize = vocabSize
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const { where } = this.#wire
    if (signal.aborted) throw cancelled(where, signal.reason)
    if (this.#isClosed) throw closed(where)
    const sampling = this.#checked(request)
    const id = freshRequestId()
    const { executionId, promptIds } = request
    const generation = new Generation({
      where,
      sampling,
      stamps: new VersionStamps(this.#versions),
      hidesLogprobs: this.#hidesLogprobs(sampling),
      vocabSize: this.#vocabSize ?? Number.POSITIVE_INFINITY,
    })
    const controller = new AbortController()
    const onAbort = (): void => controller.abort(signal.reason)
    signal.addEventListener('abort', onAbort)
    this.#running.add(controller)
    let isSettled = false
    try {
      for await (const chunks of this.#wire.chunks({ id, executionId, promptIds, sampling }, controller.signal)) {
        const { tokens, failure } = generation.takeAll(chunks)
        if (tokens !== undefined) yield tokens
        if (failure !== undefined) throw failure.error
        if (generation.isOverdue) break
      }
      isSettled = generation.hasEnd && !generation.isOverdue
    } catch (error) {
      if (signal.aborted) throw cancelled(where, signal.reason)
      if (controller.signal.aborted) throw closed(where)
      // All that was asked for had come.
      if (!generation.hasEnd) throw error
    } finally {
      signal.removeEventListener('abort', onAbort)
      this.#running.delete(controller)
      if (!isSettled) await this.#leave(id, signal.aborted)
    }
    yield generation.end()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const controller of this.#running) controller.abort()
    await Promise.allSettled(this.#farewells)
    await this.#wire.close()
  }

  /** Tells the server. Only a caller who asked for it waits until the server knows. */
  async #leave(id: string, isAwaited: boolean): Promise<void> {
    const farewell = this.#wire.cancel(id)
    this.#farewells.add(farewell)
    void farewell.finally(() => this.#farewells.delete(farewell))
    if (isAwaited) await farewell
  }

  /** @returns sampling within the context. @throws GyreError E_ENGINE_OVERLONG, E_ENGINE_REQUEST */
  #checked({ promptIds, sampling }: GenerateRequest): SamplingParams {
    const { maxContext, seeding } = this.capabilities
    if (promptIds.length === 0) throw badRequest('the prompt is empty: it needs at least one token')
    if (!(sampling.maxTokens >= 1)) throw badRequest(`maxTokens is ${sampling.maxTokens}: it must be positive`)
    if (promptIds.length >= maxContext) throw overlong(promptIds.length, maxContext)
    const vocabSize = this.#vocabSize ?? Number.POSITIVE_INFINITY
    const bad = firstBeyond(promptIds, vocabSize)
    if (bad >= 0) throw badRequest(`promptIds[${bad}] is ${promptIds[bad]}: the vocabulary has ${vocabSize} tokens`)
    const seed = seeding === 'positional' ? sampling.seed : seedAt(sampling.seed, promptIds.length)
    return { ...sampling, seed, maxTokens: Math.min(sampling.maxTokens, maxContext - promptIds.length) }
  }

  #hidesLogprobs({ temperature, topP, topK }: SamplingParams): boolean {
    const { logprobs } = this.capabilities
    if (logprobs === 'raw' || logprobs === 'unverified') return false
    return temperature !== 1 || topP !== 1 || topK !== 0
  }
}

type TokensEvent = Extract<GenerateEvent, { kind: 'tokens' }>

interface Taken {
  readonly tokens: TokensEvent | undefined
  readonly failure: { readonly error: unknown } | undefined
}

interface GrowingTokens {
  readonly tokenIds: number[]
  readonly logprobs: number[]
  readonly policyVersions: number[]
}

interface GenerationParts {
  readonly where: string
  readonly sampling: SamplingParams
  readonly stamps: VersionStamps
  readonly hidesLogprobs: boolean
  readonly vocabSize: number
}

/** What has come of one generation, and whether it has ended. */
class Generation {
  readonly #parts: GenerationParts
  readonly #stops: ReadonlySet<number>
  #count = 0
  #cachedTokens = 0
  #finish: WireFinish | undefined
  #isOverdue = false

  constructor(parts: GenerationParts) {
    this.#parts = parts
    this.#stops = new Set(parts.sampling.stopTokenIds)
  }

  /** True when the server goes on although its stop token or the last token asked for has come. */
  get isOverdue(): boolean {
    return this.#isOverdue
  }

  /** True when every token that was asked for has come. */
  get hasEnd(): boolean {
    return this.#finish !== undefined && this.#finish.kind !== 'broken'
  }

  /** One event for chunks that came together: of those before one that breaks the protocol, if one does. */
  takeAll(chunks: readonly WireChunk[]): Taken {
    const tokens = { kind: 'tokens' as const, tokenIds: [], logprobs: [], policyVersions: [] }
    let failure: Taken['failure']
    try {
      for (const chunk of chunks) this.#take(chunk, tokens)
    } catch (error) {
      failure = { error }
    }
    return { tokens: tokens.tokenIds.length === 0 ? undefined : tokens, failure }
  }

  /** @throws GyreError */
  #take(chunk: WireChunk, { tokenIds, logprobs, policyVersions }: GrowingTokens): void {
    this.#parts.stamps.check(chunk)
    this.#cachedTokens = chunk.cachedTokens ?? this.#cachedTokens
    const isLate = this.#finish !== undefined
    // Tokens past the end are nobody's; spans may still correct versions.
    const kept = isLate ? 0 : this.#keep(chunk.tokenIds)
    const trimmed = kept === chunk.tokenIds.length ? chunk : { ...chunk, tokenIds: chunk.tokenIds.slice(0, kept) }
    if (kept < chunk.tokenIds.length) this.#isOverdue = true
    const versions = this.#parts.stamps.stamp(trimmed)
    this.#finish ??= chunk.finish
    for (let i = 0; i < kept; i++) {
      tokenIds.push(chunk.tokenIds[i] as number)
      logprobs.push(this.#parts.hidesLogprobs ? Number.NaN : (chunk.logprobs[i] ?? Number.NaN))
      policyVersions.push(versions[i] as number)
    }
  }

  /** @throws GyreError E_ENGINE_UNFINISHED, or what broke the generation. */
  end(): GenerateEvent {
    const finish = this.#finish
    if (finish === undefined) throw unfinished(this.#parts.where, 'no finish reason came')
    if (finish.kind === 'broken') throw finish.error
    const policyVersions = this.#parts.stamps.corrections()
    const corrected = policyVersions === undefined ? {} : { policyVersions }
    return { kind: 'end', finishReason: finish.kind, cachedTokens: this.#cachedTokens, ...corrected }
  }

  /**
   * How many of the tokens belong to the generation; sets its end when it is among them.
   * @throws GyreError E_ENGINE_PROTOCOL
   */
  #keep(tokenIds: readonly number[]): number {
    const { where, sampling, vocabSize } = this.#parts
    for (let i = 0; i < tokenIds.length; i++) {
      const id = tokenIds[i] as number
      if (id >= vocabSize) throw malformed(where, `it sampled token ${id}: the vocabulary has ${vocabSize}`)
      this.#count++
      const isStop = this.#stops.has(id)
      if (!isStop && this.#count < sampling.maxTokens) continue
      this.#finish = { kind: isStop ? 'stop' : 'length' }
      return i + 1
    }
    return tokenIds.length
  }
}

/**
 * A server whose draws restart with every call would use the same random numbers again for a generation that is
 * resumed; the position makes them others. [0, 2^31)
 */
function seedAt(seed: number, position: number): number {
  let x = (Math.imul(seed | 0, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b)) >>> 0
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d) >>> 0
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b) >>> 0
  return (x ^ (x >>> 16)) >>> 1
}

/** Index of the first id that is none of the vocabulary, or -1. A plain loop: a context may hold a million ids. */
function firstBeyond(ids: Int32Array, vocabSize: number): number {
  const count = ids.length
  for (let i = 0; i < count; i++) {
    const id = ids[i] as number
    if (id < 0 || id >= vocabSize) return i
  }
  return -1
}
