/**
 * @file HTTP to a remote engine: JSON calls with a deadline, and streams that may last for hours.
 *
 * No limit of the HTTP library applies. A stream ends when the server ends it, when its caller does, or when nothing
 * at all has come for the idle limit.
 */
import type { Dispatcher, Pool } from 'undici'
import { GyreError } from '../../../core/errors.ts'
import { badOption, fromStatus, malformed, silent, unreachable } from './failures.ts'
import { gatheredRequest } from './gathered-body.ts'
import type { GatheredAnswer, GatheredBody } from './gathered-body.ts'
import { pacedPool } from './paced-reads.ts'
import { SseReader } from './sse-reader.ts'

/** Servers close idle connections after 5 s; ours must go first, or a request meets a closing socket. [ms] */
const KEEP_ALIVE_MS = 4000
/** Longest event of a stream. A cumulative stream repeats everything in each. [characters] */
const MAX_EVENT = 128 * 2 ** 20
/** Most of an error answer that is read. [bytes] */
const MAX_ERROR = 64 * 1024
/** How long a stream may stay open after its last event. [ms] */
const TAIL_MS = 1000
const DONE = '[DONE]'

export interface HttpOptions {
  /** Scheme, host, port and an optional path before every route. */
  readonly baseUrl: string
  readonly headers: Readonly<Record<string, string>>
  readonly connectTimeoutMs: number
  /** How long a JSON call may take. [ms] */
  readonly answerTimeoutMs: number
  /** How long a stream may be silent. [ms] */
  readonly idleTimeoutMs: number
}

export interface JsonAnswer {
  readonly status: number
  readonly body: unknown
}

export interface JsonCall {
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal
  readonly timeoutMs?: number
}

/** How the events of a stream are read. */
export interface EventReader<Read> {
  readonly headers: Readonly<Record<string, string>>
  readonly read: (data: string) => Read
  /** Asked after each batch: true once nothing that matters may follow. */
  readonly seesEnd: () => boolean
}

export class HttpClient {
  /** For messages. */
  readonly where: string
  readonly #options: HttpOptions
  readonly #prefix: string
  readonly #pool: Pool

  /** @throws GyreError E_ENGINE_OPTION when the base URL is none. */
  constructor(name: string, options: HttpOptions) {
    const url = parsedUrl(options.baseUrl)
    this.where = `${name} at ${url.origin}`
    this.#options = options
    this.#prefix = url.pathname.replace(/\/+$/, '')
    this.#pool = pacedPool(
      url.origin,
      {
        headersTimeout: 0,
        bodyTimeout: 0,
        keepAliveTimeout: KEEP_ALIVE_MS,
        keepAliveMaxTimeout: KEEP_ALIVE_MS,
        pipelining: 1,
      },
      options.connectTimeoutMs,
    )
  }

  /**
   * One call, one JSON answer of any status; a body that is no JSON comes as its text.
   * @throws GyreError E_ENGINE_UNREACHABLE, E_ENGINE_TIMEOUT
   */
  async json(method: 'GET' | 'POST', path: string, call: JsonCall = {}): Promise<JsonAnswer> {
    const limitMs = call.timeoutMs ?? this.#options.answerTimeoutMs
    const deadline = new Silence(this.where, limitMs, call.signal)
    try {
      const answer = await this.#request(method, path, deadline.signal, call.headers, bodyText(call.body))
      return { status: answer.statusCode, body: jsonOrText(await answer.body.text()) }
    } catch (error) {
      throw this.#failure(error, deadline)
    } finally {
      deadline.end()
    }
  }

  /**
   * What `read` makes of the server-sent events of the answer, of those that came together at once, without the closing
   * `[DONE]`. @param body JSON, as text or bytes.
   * @throws GyreError E_ENGINE_UNREACHABLE, E_ENGINE_TIMEOUT, or what the status means; what `read` throws.
   */
  async *events<Read>(
    path: string,
    body: string | Buffer,
    signal: AbortSignal,
    { headers, read, seesEnd }: EventReader<Read>,
  ): AsyncGenerator<readonly Read[], void, undefined> {
    const silence = new Silence(this.where, this.#options.idleTimeoutMs, signal)
    let isDone = false
    let answer: GatheredAnswer | undefined
    try {
      answer = await gatheredRequest(this.#pool, this.#call('POST', path, headers, body), silence.signal)
      if (answer.statusCode !== 200) throw fromStatus(this.where, answer.statusCode, await errorWords(answer.body))
      const reader = new SseReader(MAX_EVENT)
      for (let bytes = await answer.body.next(); bytes !== undefined; bytes = await answer.body.next()) {
        silence.refresh()
        const events = reader.push(bytes)
        const done = events.indexOf(DONE)
        const made: Read[] = []
        // What came before an event that cannot be read still counts.
        const failure = isDone ? undefined : readInto(made, done < 0 ? events : events.slice(0, done), read)
        if (made.length > 0) {
          silence.isHeld = true
          yield made
          silence.isHeld = false
        }
        if (failure !== undefined) throw failure.error
        if (done >= 0) isDone = true
        // Read on to the end of the answer, so that the connection can be used again, but not for long.
        if (!isDone && !seesEnd()) continue
        silence.shorten(TAIL_MS)
        answer.body.hasten()
      }
    } catch (error) {
      if (!isDone || signal.aborted) throw this.#failure(error, silence)
    } finally {
      answer?.body.leave()
      silence.end()
    }
  }

  /** Ends every connection at once. */
  async close(): Promise<void> {
    await this.#pool.destroy()
  }

  async #request(
    method: 'GET' | 'POST',
    path: string,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
    body?: string | Buffer,
  ): Promise<Dispatcher.ResponseData> {
    return this.#pool.request({ ...this.#call(method, path, headers, body), signal })
  }

  #call(
    method: 'GET' | 'POST',
    path: string,
    headers: Readonly<Record<string, string>>,
    body: string | Buffer | undefined,
  ): Dispatcher.DispatchOptions {
    const type = body === undefined ? {} : { 'content-type': 'application/json' }
    return {
      method,
      path: this.#prefix + path,
      headers: { ...this.#options.headers, ...headers, ...type },
      ...(body === undefined ? {} : { body }),
    }
  }

  #failure(error: unknown, silence: Silence): GyreError {
    if (error instanceof GyreError) return error
    if (error instanceof RangeError) return malformed(this.where, error.message)
    return silence.isOver ? silence.error() : unreachable(this.where, error)
  }
}

/** Made once: a reason that is made anew writes down the stack of every call. */
const ENDED = new Error('the call has ended')

/** Aborts what is waited for when nothing comes for too long, or when the caller leaves. */
class Silence {
  /** True while our own side is at work: the other's silence does not count. */
  isHeld = false
  readonly #where: string
  readonly #controller = new AbortController()
  readonly #outer: AbortSignal | undefined
  readonly #onAbort = (): void => this.#controller.abort(this.#outer?.reason)
  #limitMs: number
  #timer: NodeJS.Timeout
  #isOver = false

  constructor(where: string, limitMs: number, outer: AbortSignal | undefined) {
    this.#where = where
    this.#limitMs = limitMs
    this.#outer = outer
    this.#timer = this.#start()
    if (outer?.aborted) this.#onAbort()
    outer?.addEventListener('abort', this.#onAbort)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get isOver(): boolean {
    return this.#isOver
  }

  refresh(): void {
    this.#timer.refresh()
  }

  shorten(limitMs: number): void {
    if (limitMs >= this.#limitMs) return
    clearTimeout(this.#timer)
    this.#limitMs = limitMs
    this.#timer = this.#start()
  }

  error(): GyreError {
    return silent(this.#where, this.#limitMs)
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#outer?.removeEventListener('abort', this.#onAbort)
    this.#controller.abort(ENDED)
  }

  #start(): NodeJS.Timeout {
    return setTimeout(() => {
      if (this.isHeld) {
        this.#timer = this.#start()
        return
      }
      this.#isOver = true
      this.#controller.abort()
    }, this.#limitMs)
  }
}

/** Reads in order until one cannot be read. */
function readInto<Read>(
  made: Read[],
  events: readonly string[],
  read: (data: string) => Read,
): { readonly error: unknown } | undefined {
  try {
    for (const data of events) made.push(read(data))
  } catch (error) {
    return { error }
  }
  return undefined
}

function parsedUrl(text: string): URL {
  try {
    const url = new URL(text)
    if (url.protocol === 'http:' || url.protocol === 'https:') return url
  } catch {
    // Said below, for every wrong URL in the same words.
  }
  throw badOption(`"${text}" is no base URL of an engine: write it like http://127.0.0.1:30000`)
}

function bodyText(body: unknown): string | undefined {
  return body === undefined ? undefined : JSON.stringify(body)
}

function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return text
  }
}

async function errorWords(body: GatheredBody): Promise<string> {
  const parts: Buffer[] = []
  let size = 0
  while (size <= MAX_ERROR) {
    const part = await body.next()
    if (part === undefined) break
    parts.push(part)
    size += part.length
  }
  const text = Buffer.concat(parts).toString('utf8')
  return wordsOf(jsonOrText(text)) ?? text
}

/** The message inside the usual shapes of an error body. */
export function wordsOf(body: unknown): string | undefined {
  if (typeof body === 'string') return body
  if (typeof body !== 'object' || body === null) return undefined
  const { error, detail, message } = body as { error?: unknown; detail?: unknown; message?: unknown }
  const said = error ?? detail ?? message
  if (typeof said === 'string') return said
  return said === undefined ? JSON.stringify(body) : (wordsOf(said) ?? JSON.stringify(said))
}
