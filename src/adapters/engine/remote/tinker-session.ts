/** @file A session of the Tinker API: opened, kept alive, and asked for futures whose results are polled. */
import { setTimeout as sleep } from 'node:timers/promises'
import { GyreError } from '../../../core/errors.ts'
import { badOption, fromErrorData, fromStatus, malformed, silent, unreachable } from './failures.ts'
import type { HttpClient, JsonAnswer } from './http.ts'
import { wordsOf } from './http.ts'
import { isRecord } from './wire.ts'

/** A poll that is held for longer is asked again: the result waits for us. [ms] */
const POLL_MS = 60_000
const CANCEL_MS = 2000
/** Between polls of a server that answers at once, and after one that failed. [ms] */
const FIRST_PAUSE_MS = 25
const MAX_PAUSE_MS = 5000
const API = '/api/v1'

/** Which weights are sampled: a model of the server's, or a checkpoint saved for sampling. */
export type TinkerModel = { readonly baseModel: string } | { readonly modelPath: string }

export interface TinkerTimings {
  /** How long a result may take. [ms] */
  readonly resultMs: number
  /** The server ends a session it has not heard of for minutes. [ms] */
  readonly heartbeatMs: number
}

export class TinkerSession {
  readonly #http: HttpClient
  readonly #model: TinkerModel
  readonly #timings: TinkerTimings
  #heartbeat: NodeJS.Timeout | undefined
  #opening: Promise<string> | undefined
  #sampled = 0
  #sessions = 0

  constructor(http: HttpClient, model: TinkerModel, timings: TinkerTimings) {
    this.#http = http
    this.#model = model
    this.#timings = timings
  }

  get where(): string {
    return this.#http.where
  }

  /** The names of the models and how much they take. @throws GyreError */
  async models(): Promise<readonly { readonly name: string; readonly maxContext: number | undefined }[]> {
    const body = recordOf(this.where, await this.#http.json('GET', `${API}/get_server_capabilities`))
    const listed = Array.isArray(body['supported_models']) ? body['supported_models'].filter(isRecord) : []
    return listed.map((model) => {
      const length = model['max_context_length']
      return { name: String(model['model_name']), maxContext: typeof length === 'number' ? length : undefined }
    })
  }

  /**
   * Asks for one sample.
   * @returns the id of its future. @throws GyreError
   */
  async sample(fields: Readonly<Record<string, unknown>>, signal: AbortSignal): Promise<string> {
    for (let tries = 0; ; tries++) {
      const opening = (this.#opening ??= this.#open())
      const body = { ...fields, sampling_session_id: await opening, seq_id: this.#sampled++, type: 'sample' }
      const answer = await this.#http.json('POST', `${API}/asample`, { body, signal })
      // The session is gone: the server was restarted, or did not hear of us.
      if (answer.status === 404 && tries === 0) {
        if (this.#opening === opening) this.#opening = undefined
        continue
      }
      return textOf(this.where, recordOf(this.where, answer), 'request_id')
    }
  }

  /**
   * Polls until the result is there.
   * @returns undefined when the server has lost it: ask for the sample again. @throws GyreError
   */
  async result(requestId: string, signal: AbortSignal): Promise<Record<string, unknown> | undefined> {
    const body = { request_id: requestId, allow_metadata_only: false }
    const endsAt = performance.now() + this.#timings.resultMs
    let pauseMs = FIRST_PAUSE_MS
    for (;;) {
      const leftMs = endsAt - performance.now()
      if (leftMs <= 0) throw silent(this.where, this.#timings.resultMs)
      const startedAt = performance.now()
      const answer = await this.#poll(body, signal, Math.min(POLL_MS, leftMs))
      if (answer !== 'pending' && answer !== 'failed') return answer
      // A server that holds polls needs no pause between them.
      if (answer === 'pending' && performance.now() - startedAt > 1000) pauseMs = FIRST_PAUSE_MS
      else await sleep(Math.min(pauseMs, leftMs), undefined, { signal })
      pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS)
    }
  }

  /** Tells the server that nobody wants the result. Old servers do not know how and finish it. */
  async cancel(requestId: string): Promise<void> {
    const call = this.#http.json('POST', `${API}/cancel_future`, {
      body: { request_id: requestId },
      timeoutMs: CANCEL_MS,
    })
    await call.catch(() => undefined)
  }

  async close(): Promise<void> {
    clearInterval(this.#heartbeat)
    await this.#http.close()
  }

  async #open(): Promise<string> {
    try {
      const opened = await this.#http.json('POST', `${API}/create_session`, {
        body: { tags: [], user_metadata: null, sdk_version: 'gyre', type: 'create_session' },
      })
      const sessionId = textOf(this.where, recordOf(this.where, opened), 'session_id')
      const model =
        'baseModel' in this.#model ? { base_model: this.#model.baseModel } : { model_path: this.#model.modelPath }
      const sampling = await this.#http.json('POST', `${API}/create_sampling_session`, {
        body: {
          session_id: sessionId,
          sampling_session_seq_id: this.#sessions++,
          ...model,
          type: 'create_sampling_session',
        },
      })
      this.#keepAlive(sessionId)
      return textOf(this.where, recordOf(this.where, sampling), 'sampling_session_id')
    } catch (error) {
      // The next sample opens a session anew.
      this.#opening = undefined
      throw error
    }
  }

  #keepAlive(sessionId: string): void {
    clearInterval(this.#heartbeat)
    const beat = async (): Promise<void> => {
      const body = { session_id: sessionId, type: 'session_heartbeat' }
      // A lost beat shows in the next sample.
      await this.#http.json('POST', `${API}/session_heartbeat`, { body }).catch(() => undefined)
    }
    this.#heartbeat = setInterval(() => void beat(), this.#timings.heartbeatMs)
    this.#heartbeat.unref()
  }

  async #poll(
    body: Readonly<Record<string, unknown>>,
    signal: AbortSignal,
    timeoutMs: number,
  ): Promise<Record<string, unknown> | 'pending' | 'failed' | undefined> {
    let answer: JsonAnswer
    try {
      answer = await this.#http.json('POST', `${API}/retrieve_future`, {
        body,
        signal,
        timeoutMs,
        headers: { accept: 'application/json' },
      })
    } catch (error) {
      if (signal.aborted || !(error instanceof GyreError)) throw error
      if (error.code === 'E_ENGINE_TIMEOUT') return 'pending'
      throw error
    }
    if (answer.status === 408) return 'pending'
    if (answer.status === 410 || answer.status === 404) return undefined
    if (answer.status === 429 || answer.status >= 500) return 'failed'
    const result = recordOf(this.where, answer)
    if (result['type'] === 'try_again' || result['status'] === 'complete_metadata') return 'pending'
    if (result['error'] !== undefined) throw failureOf(this.where, result)
    return result
  }
}

/** `{error, category}`: the server could not do it; `user` says that we asked wrongly. */
function failureOf(where: string, { error, category }: Record<string, unknown>): GyreError {
  const code = String(category).toLowerCase() === 'user' ? 400 : 500
  return fromErrorData(where, { code, message: wordsOf(error) ?? '' })
}

/** @throws GyreError what the status means, or E_ENGINE_PROTOCOL when the body is no object. */
function recordOf(where: string, { status, body }: JsonAnswer): Record<string, unknown> {
  if (status !== 200) throw fromStatus(where, status, wordsOf(body) ?? '')
  if (isRecord(body)) return body
  throw malformed(where, `an answer is no JSON object: ${String(body).slice(0, 80)}`)
}

function textOf(where: string, body: Record<string, unknown>, key: string): string {
  const value = body[key]
  if (typeof value === 'string' && value !== '') return value
  throw malformed(where, `an answer has no ${key}: ${JSON.stringify(body).slice(0, 80)}`)
}

/** How often a lost result is asked for again before the generation goes on elsewhere. */
const MAX_LOST = 3

/** One sample of its own future; a result that the server lost is sampled again. */
export async function sampleOnce(
  session: TinkerSession,
  fields: Readonly<Record<string, unknown>>,
  signal: AbortSignal,
  onFuture: (requestId: string | undefined) => void,
): Promise<Record<string, unknown>> {
  for (let lost = 0; lost < MAX_LOST; lost++) {
    const requestId = await session.sample(fields, signal)
    onFuture(requestId)
    const result = await session.result(requestId, signal)
    onFuture(undefined)
    if (result !== undefined) return result
  }
  throw unreachable(session.where, new Error(`it lost the result of a sample ${MAX_LOST} times`))
}

export function tinkerKeyHeaders(apiKey: string | undefined): Readonly<Record<string, string>> {
  if (apiKey === undefined) return {}
  // The rule of the service: anything else is refused there without saying why.
  if (!apiKey.startsWith('tml-') && !apiKey.startsWith('eyJ')) {
    throw badOption('the Tinker key does not begin with tml-: take the one of the Tinker console')
  }
  return { 'x-api-key': apiKey }
}
