/**
 * @file One end's view of a cell's socket: calls with a deadline, streams of lines.
 * The control process uses it for every verb, a cell for the tensors of another cell.
 */
import type { Readable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import { Pool } from 'undici'
import type { Dispatcher } from 'undici'
import { GyreError, errorText } from '../core/errors.ts'
import type { GradientSums } from '../training/gradient-sums.ts'
import type { Deadline } from './deadline.ts'
import { HEADER, VERBS, pathOf } from './protocol.ts'
import type { Verb } from './protocol.ts'
import { fromWireError } from './wire-errors.ts'

/** How much longer than the cell itself a caller waits for its answer. [ms] */
const GRACE_MS = 1000

export interface CallOptions {
  readonly deadline: Deadline
  readonly epoch?: number
  readonly key?: string
  /** Parts of the body, sent one after the other. */
  readonly body?: readonly Uint8Array[]
  readonly contentType?: string
  readonly signal?: AbortSignal
}

export interface RawAnswer {
  readonly body: Buffer
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
}

export class CellConnection {
  readonly address: string
  readonly #token: string
  readonly #pool: Pool

  /** @param address path of a Unix socket, or host:port. */
  constructor(address: string, token: string) {
    this.address = address
    this.#token = token
    const isPath = address.startsWith('/')
    // The deadline of each call is ours: undici's own 300 s limits would end long calls.
    this.#pool = new Pool(isPath ? 'http://cell' : `http://${address}`, {
      ...(isPath ? { socketPath: address } : {}),
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: 60_000,
      pipelining: 1,
    })
  }

  /**
   * One call, one answer.
   * @throws GyreError E_CELL_UNREACHABLE, E_CELL_TIMEOUT, or whatever the cell answered.
   */
  async call(verb: Verb, options: CallOptions): Promise<RawAnswer> {
    const { signal, end } = limitOf(options)
    try {
      const answer = await this.#request(verb, { ...options, signal })
      const body = Buffer.from(await answer.body.arrayBuffer())
      if (answer.statusCode !== 200) throw fromWireError(errorOf(body))
      return { body, headers: answer.headers }
    } catch (error) {
      if (error instanceof GyreError) throw error
      if (signal.aborted) throw signal.reason as Error
      throw this.#unreachable(verb, error)
    } finally {
      end()
    }
  }

  /**
   * One call, whose answer is taken as it comes; an answer that breaks off is an error.
   * @throws GyreError as `call`.
   */
  async *bytes(verb: Verb, options: CallOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const { signal, end } = limitOf(options)
    try {
      const answer = await this.#request(verb, { ...options, signal })
      if (answer.statusCode !== 200) throw fromWireError(errorOf(Buffer.from(await answer.body.arrayBuffer())))
      for await (const piece of answer.body) yield piece as Buffer
    } catch (error) {
      if (error instanceof GyreError) throw error
      if (signal.aborted) throw signal.reason as Error
      throw this.#unreachable(verb, error)
    } finally {
      end()
    }
  }

  /** One call whose answer is JSON. */
  async json(verb: Verb, options: Omit<CallOptions, 'body' | 'contentType'>, body?: unknown): Promise<unknown> {
    const parts = body === undefined ? {} : { body: [Buffer.from(JSON.stringify(body))] }
    const answer = await this.call(verb, { ...options, ...parts })
    try {
      return JSON.parse(answer.body.toString()) as unknown
    } catch (cause) {
      throw new GyreError(`the cell's answer to ${verb} is not JSON`, {
        boundary: 'cell',
        code: 'E_CELL_PROTOCOL',
        cause,
      })
    }
  }

  /** [P] float32. @throws GyreError as `call`, and E_TRANSFER_LAYOUT. */
  async weights(deadline: Deadline): Promise<Float32Array> {
    const body = await this.#numbers('weights', 4, deadline)
    return new Float32Array(body.buffer, body.byteOffset, body.length / 4)
  }

  /** [P + 1] int64. @throws GyreError as `call`, and E_TRANSFER_LAYOUT. */
  async gradients(deadline: Deadline): Promise<GradientSums> {
    const body = await this.#numbers('gradients', 8, deadline)
    return new BigInt64Array(body.buffer, body.byteOffset, body.length / 8)
  }

  /** A body that is nothing but numbers, little-endian. @param width of one. [bytes] */
  async #numbers(verb: 'weights' | 'gradients', width: number, deadline: Deadline): Promise<Buffer> {
    const { body } = await this.call(verb, { deadline })
    if (body.length % width !== 0) {
      throw new GyreError(`the ${verb} of ${this.address} are ${body.length} bytes, no whole number of values`, {
        boundary: 'transfer',
        code: 'E_TRANSFER_LAYOUT',
      })
    }
    return body
  }

  /**
   * A call answered by lines. Ends the connection when the iteration ends early, `signal` aborts, or
   * nothing at all (no heartbeat either) comes for `silenceMs`.
   * @throws GyreError E_CELL_UNREACHABLE, or whatever the cell answered instead of a stream.
   */
  async *lines(
    verb: Verb,
    options: CallOptions & { readonly signal: AbortSignal },
    silenceMs: number,
  ): AsyncGenerator<string, void, undefined> {
    const controller = new AbortController()
    const stop = (): void => controller.abort(options.signal.reason)
    const silent = new Error(`nothing came for ${silenceMs} ms`)
    const timer = setTimeout(() => controller.abort(silent), silenceMs)
    options.signal.addEventListener('abort', stop)
    if (options.signal.aborted) stop()
    try {
      const answer = await this.#request(verb, { ...options, signal: controller.signal })
      if (answer.statusCode !== 200) throw fromWireError(errorOf(Buffer.from(await answer.body.arrayBuffer())))
      yield* splitLines(answer.body, () => timer.refresh())
    } catch (error) {
      if (error instanceof GyreError) throw error
      throw this.#unreachable(verb, controller.signal.aborted ? controller.signal.reason : error)
    } finally {
      clearTimeout(timer)
      options.signal.removeEventListener('abort', stop)
      controller.abort()
    }
  }

  /** Ends every connection at once. */
  async close(): Promise<void> {
    await this.#pool.destroy()
  }

  async #request(verb: Verb, options: CallOptions): Promise<Dispatcher.ResponseData> {
    const { deadline, epoch, key, body, contentType, signal } = options
    return this.#pool.request({
      method: VERBS[verb].method,
      path: pathOf(verb),
      headers: {
        authorization: `Bearer ${this.#token}`,
        [HEADER.deadline]: String(Math.ceil(deadline.remainingMs())),
        ...(epoch === undefined ? {} : { [HEADER.epoch]: String(epoch) }),
        ...(key === undefined ? {} : { [HEADER.key]: key }),
        ...(body === undefined ? {} : { 'content-type': contentType ?? 'application/json' }),
      },
      ...(body === undefined ? {} : { body: body.length === 1 ? (body[0] as Uint8Array) : Buffer.concat(body) }),
      ...(signal === undefined ? {} : { signal }),
    })
  }

  #unreachable(verb: Verb, cause: unknown): GyreError {
    return new GyreError(`the cell at ${this.address} did not answer ${verb}: ${errorText(cause)}`, {
      boundary: 'cell',
      code: 'E_CELL_UNREACHABLE',
      retryable: true,
    })
  }
}

/** A signal that aborts when the caller's does, or a little after the deadline. `end` releases its timer. */
function limitOf({ deadline, signal }: CallOptions): { readonly signal: AbortSignal; readonly end: () => void } {
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(deadline.error(true)), deadline.remainingMs() + GRACE_MS)
  const both = signal === undefined ? late.signal : AbortSignal.any([signal, late.signal])
  return { signal: both, end: () => clearTimeout(timer) }
}

function errorOf(body: Buffer): unknown {
  try {
    return (JSON.parse(body.toString()) as { error?: unknown }).error
  } catch {
    return body.toString('utf8', 0, 200)
  }
}

async function* splitLines(stream: Readable, onData: () => void): AsyncGenerator<string, void, undefined> {
  const decoder = new StringDecoder('utf8')
  let rest = ''
  for await (const chunk of stream) {
    onData()
    const lines = (rest + decoder.write(chunk as Buffer)).split('\n')
    rest = lines.pop() ?? ''
    yield* lines
  }
  if (rest !== '') throw new Error('the stream ended inside a line')
}
