/**
 * @file SGLang's native protocol: `POST /generate`, token ids in, a stream of JSON frames out.
 *
 * A frame's lists hold everything so far, or the new part, or one of each, depending on the server's flags and age. An
 * aborted stream may end with fewer ids than came before. The frame's own count of tokens tells what is new.
 */
import { fromErrorData, unfinished } from './failures.ts'
import type { HttpClient } from './http.ts'
import { bodyWithIds } from './ids-text.ts'
import { Tally, countOf, evidence, idsOf, isRecord, parsedEvent, spansOf } from './wire.ts'
import type { StreamShape, Wire, WireChunk, WireFinish, WireRequest } from './wire.ts'

const CANCEL_MS = 2000

export const SGLANG_ROUTE = '/generate'

export class SglangWire implements Wire {
  readonly route = SGLANG_ROUTE
  readonly #http: HttpClient
  #shape: StreamShape = 'delta'

  constructor(http: HttpClient) {
    this.#http = http
  }

  get where(): string {
    return this.#http.where
  }

  get shape(): StreamShape {
    return this.#shape
  }

  chunks(request: WireRequest, signal: AbortSignal): AsyncGenerator<readonly WireChunk[], void, undefined> {
    const frames = new SglangFrames(this.where, (shape) => (this.#shape = shape))
    const headers = { 'x-smg-routing-key': encodeURIComponent(request.executionId) }
    return this.#http.events(SGLANG_ROUTE, requestBody(request), signal, {
      headers,
      read: (data) => frames.take(parsedEvent(this.where, data)),
      seesEnd: () => frames.hasEnd,
    })
  }

  async cancel(id: string): Promise<void> {
    const call = this.#http.json('POST', '/abort_request', { body: { rid: id }, timeoutMs: CANCEL_MS })
    await call.catch(() => undefined)
  }

  async close(): Promise<void> {
    await this.#http.close()
  }
}

function requestBody({ id, promptIds, sampling }: WireRequest): Buffer {
  const { maxTokens, temperature, topP, topK, stopTokenIds, seed } = sampling
  return bodyWithIds('input_ids', promptIds, {
    rid: id,
    stream: true,
    return_logprob: true,
    // Of the output only.
    logprob_start_len: -1,
    top_logprobs_num: 0,
    return_text_in_logprobs: false,
    sampling_params: {
      max_new_tokens: maxTokens,
      temperature,
      top_p: topP,
      top_k: topK === 0 ? -1 : topK,
      stop_token_ids: stopTokenIds,
      // This server's `ignore_eos` ignores `stop_token_ids` as well.
      ignore_eos: stopTokenIds.length === 0,
      no_stop_trim: true,
      skip_special_tokens: false,
      spaces_between_special_tokens: false,
      sampling_seed: seed,
    },
  })
}

/** Frames of one generation. */
class SglangFrames {
  readonly #where: string
  readonly #tally: Tally
  readonly #onShape: (shape: StreamShape) => void
  /** Tokens of a frame when none was counted by the server; decides what its lists hold. */
  #isCumulative: boolean | undefined
  hasEnd = false

  constructor(where: string, onShape: (shape: StreamShape) => void) {
    this.#where = where
    this.#tally = new Tally(where)
    this.#onShape = onShape
  }

  take(frame: Record<string, unknown>): WireChunk {
    if (frame['error'] !== undefined && frame['error'] !== null) throw fromErrorData(this.#where, frame['error'])
    const meta = isRecord(frame['meta_info']) ? frame['meta_info'] : {}
    const finish = finishOf(this.#where, meta['finish_reason'])
    const entries = Array.isArray(meta['output_token_logprobs']) ? (meta['output_token_logprobs'] as unknown[]) : []
    const outputIds = idsOf(this.#where, frame['output_ids'])
    const { entryIds, logprobs, isWhole } = entriesOf(entries)
    const total = countOf(meta['completion_tokens']) ?? this.#uncounted(outputIds.length)
    const fresh = Math.max(0, total - this.#tally.have)
    this.#learnShape(total, fresh, outputIds.length, entries.length)
    // The ids beside the log-probs stay whole where those of an aborted stream collapse.
    const ids = entryIds.length >= fresh && isWhole ? entryIds : outputIds
    if (finish !== undefined) this.hasEnd = true
    const isCut = finish?.kind === 'broken' && ids.length < fresh
    const tokens = isCut ? { tokenIds: [], logprobs: [] } : this.#tally.take(ids, logprobs, total)
    const label = meta['weight_version']
    return {
      tokenIds: tokens.tokenIds,
      logprobs: tokens.logprobs,
      finish,
      label: typeof label === 'string' || typeof label === 'number' ? String(label) : undefined,
      spans: spansOf(meta['weight_versions']),
      cachedTokens: countOf(meta['cached_tokens']),
    }
  }

  /** Tokens so far when the server does not count them: told from whether the list grows. */
  #uncounted(length: number): number {
    const have = this.#tally.have
    if (have > 0 && this.#isCumulative === undefined) this.#isCumulative = length > have
    return this.#isCumulative === true || have === 0 ? length : have + length
  }

  #learnShape(total: number, fresh: number, ids: number, logprobs: number): void {
    if (fresh === 0 || fresh === total) return
    const [idsGrow, logprobsGrow] = [ids === total, logprobs === total]
    this.#onShape(idsGrow === logprobsGrow ? (idsGrow ? 'cumulative' : 'delta') : 'mixed')
  }
}

/** The pairs `[log-prob, id, text]` of a frame. */
function entriesOf(entries: readonly unknown[]) {
  const entryIds: number[] = []
  const logprobs: number[] = []
  let isWhole = true
  for (const entry of entries) {
    const [logprob, id] = Array.isArray(entry) ? (entry as unknown[]) : []
    const entryId = Number(id)
    entryIds.push(entryId)
    logprobs.push(evidence(logprob))
    isWhole &&= Number.isInteger(entryId)
  }
  return { entryIds, logprobs, isWhole }
}

/** `{type: stop | length | abort}`, or the bare word of old servers; null while it goes on. */
function finishOf(where: string, reason: unknown): WireFinish | undefined {
  if (reason === null || reason === undefined) return undefined
  const type = isRecord(reason) ? reason['type'] : reason
  if (type === 'stop' || type === 'length') return { kind: type }
  const status = isRecord(reason) ? countOf(reason['status_code']) : undefined
  const said = isRecord(reason) ? reason['message'] : undefined
  const message = typeof said === 'string' ? said : ''
  const error =
    status === undefined
      ? unfinished(where, `${JSON.stringify(type)}${message === '' ? '' : `, ${message}`}`)
      : fromErrorData(where, { code: status, message })
  return { kind: 'broken', error }
}
