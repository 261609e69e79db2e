/**
 * @file vLLM's two ways to take and give token ids: the token-in token-out route of its scale-out servers, and
 * `/v1/completions` with token ids asked for. Both stream what is new.
 */
import type { SamplingParams } from '../../../ports/engine.ts'
import { fromErrorData, malformed, unfinished } from './failures.ts'
import type { HttpClient } from './http.ts'
import { bodyWithIds } from './ids-text.ts'
import { Tally, countOf, evidence, idsOf, isRecord, parsedEvent, spansOf } from './wire.ts'
import type { StreamShape, Wire, WireChunk, WireFinish, WireRequest } from './wire.ts'

const CANCEL_MS = 2000

export const TOKENS_ROUTE = '/inference/v1/generate'
export const COMPLETIONS_ROUTE = '/v1/completions'
/** Both count what has come so far in every chunk. */
const USAGE = { include_usage: true, continuous_usage_stats: true }

type Choice = Pick<WireChunk, 'tokenIds' | 'logprobs'>

abstract class VllmWire implements Wire {
  abstract readonly route: string
  readonly shape: StreamShape = 'delta'
  protected readonly http: HttpClient
  protected readonly model: string

  constructor(http: HttpClient, model: string) {
    this.http = http
    this.model = model
  }

  get where(): string {
    return this.http.where
  }

  chunks(request: WireRequest, signal: AbortSignal): AsyncGenerator<readonly WireChunk[], void, undefined> {
    const tally = new Tally(this.where)
    let hasEnd = false
    const headers = { 'x-request-id': request.id, 'x-session-id': encodeURIComponent(request.executionId) }
    const read = (data: string): WireChunk => {
      const frame = parsedEvent(this.where, data)
      if (frame['error'] !== undefined && frame['error'] !== null) throw fromErrorData(this.where, frame['error'])
      this.check(frame, request)
      const chunk = this.#chunk(frame, tally)
      if (chunk.finish !== undefined) hasEnd = true
      return chunk
    }
    return this.http.events(this.route, this.body(request), signal, { headers, read, seesEnd: () => hasEnd })
  }

  abstract cancel(id: string): Promise<void>

  async close(): Promise<void> {
    await this.http.close()
  }

  protected abstract body(request: WireRequest): Buffer
  protected abstract choice(choice: Record<string, unknown>): Choice

  /** @throws GyreError E_ENGINE_PROTOCOL when the frame shows that something else was asked. */
  protected check(_frame: Record<string, unknown>, _request: WireRequest): void {}

  #chunk(frame: Record<string, unknown>, tally: Tally): WireChunk {
    const usage = isRecord(frame['usage']) ? frame['usage'] : {}
    const details = isRecord(usage['prompt_tokens_details']) ? usage['prompt_tokens_details'] : {}
    const choices = Array.isArray(frame['choices']) ? (frame['choices'] as unknown[]) : []
    const choice = isRecord(choices[0]) ? choices[0] : {}
    const { tokenIds, logprobs } = this.choice(choice)
    // The closing chunk has usage and no choice; its count is of tokens that came.
    const total = choices.length === 0 ? undefined : countOf(usage['completion_tokens'])
    return {
      ...tally.take(tokenIds, logprobs, total),
      finish: finishOf(this.where, choice['finish_reason']),
      spans: spansOf(choice['weight_versions']),
      cachedTokens: countOf(details['cached_tokens']),
    }
  }
}

export class TokensWire extends VllmWire {
  readonly route = TOKENS_ROUTE

  /** The server prefixes the ids it is given. */
  async cancel(id: string): Promise<void> {
    const body = { request_ids: [`generate-tokens-${id}`] }
    await this.http.json('POST', '/inference/v1/abort_requests', { body, timeoutMs: CANCEL_MS }).catch(() => undefined)
  }

  protected body({ id, promptIds, sampling }: WireRequest): Buffer {
    return bodyWithIds('token_ids', promptIds, {
      request_id: id,
      model: this.model,
      stream: true,
      stream_options: USAGE,
      sampling_params: { ...samplingFields(sampling), logprobs: 0, n: 1, detokenize: false },
    })
  }

  protected choice(choice: Record<string, unknown>): Choice {
    const logprobs = isRecord(choice['logprobs']) ? choice['logprobs'] : {}
    const content = Array.isArray(logprobs['content']) ? logprobs['content'].filter(isRecord) : []
    const named = content.map((entry) => countOf(entry['token_id']) ?? idInToken(entry['token']))
    const given = idsOf(this.where, choice['token_ids'])
    const tokenIds = given.length > 0 ? given : named.filter((id) => id !== undefined)
    return { tokenIds, logprobs: content.map((entry) => evidence(entry['logprob'])) }
  }
}

export class CompletionsWire extends VllmWire {
  readonly route = COMPLETIONS_ROUTE

  /** This route has no abort of its own: the server aborts what its client hangs up on. */
  async cancel(): Promise<void> {}

  protected body({ id, promptIds, sampling }: WireRequest): Buffer {
    return bodyWithIds('prompt', promptIds, {
      request_id: id,
      model: this.model,
      stream: true,
      stream_options: USAGE,
      ...samplingFields(sampling),
      logprobs: 0,
      n: 1,
      return_token_ids: true,
      return_tokens_as_token_ids: true,
      skip_special_tokens: false,
      spaces_between_special_tokens: false,
      add_special_tokens: false,
    })
  }

  protected choice(choice: Record<string, unknown>): Choice {
    const logprobs = isRecord(choice['logprobs']) ? choice['logprobs'] : {}
    const values = Array.isArray(logprobs['token_logprobs']) ? logprobs['token_logprobs'].map(evidence) : []
    return { tokenIds: idsOf(this.where, choice['token_ids']), logprobs: values }
  }

  /** The first chunk repeats the prompt as the model saw it. */
  protected override check(frame: Record<string, unknown>, { promptIds }: WireRequest): void {
    const choices = Array.isArray(frame['choices']) ? (frame['choices'] as unknown[]) : []
    const seen = isRecord(choices[0]) ? choices[0]['prompt_token_ids'] : undefined
    if (!Array.isArray(seen)) return
    if (seen.length === promptIds.length && promptIds.every((id, i) => seen[i] === id)) return
    throw malformed(this.where, `it ran a prompt of ${seen.length} tokens, not the ${promptIds.length} it was given`)
  }
}

function samplingFields({ maxTokens, temperature, topP, topK, stopTokenIds, seed }: SamplingParams) {
  return {
    max_tokens: maxTokens,
    temperature,
    top_p: topP,
    top_k: topK === 0 ? -1 : topK,
    seed,
    stop_token_ids: stopTokenIds,
    // Ends at our stop tokens only; the model folder's own would end it too, unseen.
    ignore_eos: true,
  }
}

/** Older servers wrote the id as a word, `token_id:262`. */
function idInToken(token: unknown): number | undefined {
  const digits = typeof token === 'string' ? /^token_id:(\d+)$/.exec(token)?.[1] : undefined
  return digits === undefined ? undefined : Number(digits)
}

function finishOf(where: string, reason: unknown): WireFinish | undefined {
  if (reason === null || reason === undefined) return undefined
  if (reason === 'stop' || reason === 'length') return { kind: reason }
  return { kind: 'broken', error: unfinished(where, JSON.stringify(reason)) }
}
