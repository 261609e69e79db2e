/**
 * @file Sampling through the Tinker API: `asample` gives whole answers only, so a generation is made in slices. Each
 * goes on from the tokens of those before it, and a cancelled generation loses at most the slice under way.
 */
import { fromErrorData, malformed } from './failures.ts'
import { sampleOnce } from './tinker-session.ts'
import type { TinkerSession } from './tinker-session.ts'
import { evidence, idsOf, isRecord } from './wire.ts'
import type { StreamShape, Wire, WireChunk, WireFinish, WireRequest } from './wire.ts'

export class TinkerWire implements Wire {
  readonly route = '/api/v1/asample'
  readonly shape: StreamShape = 'slices'
  readonly #session: TinkerSession
  readonly #sliceTokens: number
  /** Futures under way, by the id of their generation. */
  readonly #futures = new Map<string, string>()

  constructor(session: TinkerSession, sliceTokens: number) {
    this.#session = session
    this.#sliceTokens = sliceTokens
  }

  get where(): string {
    return this.#session.where
  }

  async *chunks(request: WireRequest, signal: AbortSignal): AsyncGenerator<readonly WireChunk[], void, undefined> {
    const { id, sampling } = request
    const context = new Int32Array(request.promptIds.length + sampling.maxTokens)
    context.set(request.promptIds)
    let length = request.promptIds.length
    let cachedTokens: number | undefined
    for (let left = sampling.maxTokens; left > 0;) {
      const asked = Math.min(left, this.#sliceTokens)
      const fields = sliceFields(request, context.subarray(0, length), asked)
      const result = await sampleOnce(this.#session, fields, signal, (future) => this.#note(id, future))
      const slice = this.#slice(result)
      if (slice.tokenIds.length > asked) {
        throw malformed(this.where, `${slice.tokenIds.length} tokens came where ${asked} were asked for`)
      }
      context.set(slice.tokenIds, length)
      length += slice.tokenIds.length
      left -= slice.tokenIds.length
      // A slice that is full is no end of the generation; one that is not has met the server's own bound.
      const isEnd = slice.finish.kind !== 'length' || left === 0 || slice.tokenIds.length < asked
      cachedTokens ??= slice.cachedTokens
      yield [{ ...slice, cachedTokens, finish: isEnd ? slice.finish : undefined }]
      if (isEnd) return
    }
  }

  async cancel(id: string): Promise<void> {
    const future = this.#futures.get(id)
    this.#futures.delete(id)
    if (future !== undefined) await this.#session.cancel(future)
  }

  async close(): Promise<void> {
    await this.#session.close()
  }

  #note(id: string, future: string | undefined): void {
    if (future === undefined) this.#futures.delete(id)
    else this.#futures.set(id, future)
  }

  #slice(result: Record<string, unknown>) {
    const sequences = Array.isArray(result['sequences']) ? (result['sequences'] as unknown[]) : []
    const sequence = sequences[0]
    if (!isRecord(sequence)) throw malformed(this.where, 'a sample came without a sequence')
    const tokenIds = idsOf(this.where, sequence['tokens'])
    const given = Array.isArray(sequence['logprobs']) ? (sequence['logprobs'] as unknown[]) : []
    const logprobs = tokenIds.map((_, i) => evidence(given.length === tokenIds.length ? given[i] : undefined))
    const hits = result['prompt_cache_hit_tokens']
    const finish = finishOf(this.where, sequence['stop_reason'])
    return { tokenIds, logprobs, finish, cachedTokens: typeof hits === 'number' ? hits : undefined }
  }
}

function sliceFields({ sampling }: WireRequest, context: Int32Array, maxTokens: number) {
  const { temperature, topP, topK, stopTokenIds, seed } = sampling
  return {
    num_samples: 1,
    prompt: { chunks: [{ type: 'encoded_text', tokens: Array.from(context) }] },
    sampling_params: {
      max_tokens: maxTokens,
      temperature,
      top_p: topP,
      top_k: topK === 0 ? -1 : topK,
      // An empty list turns the model's own end off as well.
      stop: stopTokenIds,
      // Draws restart with every slice: the position makes them others.
      seed: (seed + context.length) % 2 ** 31,
    },
    prompt_logprobs: false,
    topk_prompt_logprobs: 0,
  }
}

function finishOf(where: string, reason: unknown): WireFinish {
  if (reason === 'stop' || reason === 'length') return { kind: reason }
  return {
    kind: 'broken',
    error: fromErrorData(where, { code: 500, message: `stop_reason ${JSON.stringify(reason)}` }),
  }
}
