/**
 * @file The body of an answer that comes in many small pieces, handed out in fewer larger ones.
 *
 * A server that streams tokens sends a packet for each of them to each caller. What comes within a moment of the piece
 * before is gathered, so that the work behind is done once for several tokens; the first piece and the end wait for
 * nothing.
 */
import type { Dispatcher } from 'undici'

/** How long a piece may wait for others. Far below what a reader of the text would notice. [ms] */
const GATHER_MS = 25
/** Most that is held before the server has to wait. [bytes] */
const HELD_BYTES = 4 * 2 ** 20

export interface GatheredAnswer {
  readonly statusCode: number
  readonly body: GatheredBody
}

/** @throws what the request failed with before its headers. */
export async function gatheredRequest(
  pool: Dispatcher,
  options: Dispatcher.DispatchOptions,
  signal: AbortSignal,
): Promise<GatheredAnswer> {
  return new Promise((resolve, reject) => {
    const body = new GatheredBody(signal, resolve, reject)
    pool.dispatch(options, body)
  })
}

export class GatheredBody implements Dispatcher.DispatchHandler, AsyncIterable<Buffer> {
  readonly #signal: AbortSignal
  readonly #resolve: (answer: GatheredAnswer) => void
  readonly #reject: (error: unknown) => void
  readonly #onAbort = (): void => this.#controller?.abort(abortReason(this.#signal))
  #controller: Dispatcher.DispatchController | undefined
  #chunks: Buffer[] = []
  #held = 0
  #end: { readonly error: Error | undefined } | undefined
  #wake: (() => void) | undefined
  #timer: NodeJS.Timeout | undefined
  #handedAtMs = -Infinity

  constructor(signal: AbortSignal, resolve: (answer: GatheredAnswer) => void, reject: (error: unknown) => void) {
    this.#signal = signal
    this.#resolve = resolve
    this.#reject = reject
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#signal.aborted) this.#onAbort()
    else this.#signal.addEventListener('abort', this.#onAbort)
  }

  onResponseStart(_: Dispatcher.DispatchController, statusCode: number): void {
    // An informational answer precedes the one that counts.
    if (statusCode >= 200) this.#resolve({ statusCode, body: this })
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#chunks.push(chunk)
    this.#held += chunk.length
    if (this.#held > HELD_BYTES) controller.pause()
    const waitMs = this.#handedAtMs + GATHER_MS - performance.now()
    if (waitMs <= 0) this.#wakeUp()
    else this.#timer ??= setTimeout(() => this.#wakeUp(), waitMs)
  }

  onResponseEnd(): void {
    this.#finish(undefined)
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#reject(error)
    this.#finish(error)
  }

  /** Leaving before the end ends the request. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void, undefined> {
    try {
      for (;;) {
        while (!this.#isDue()) await new Promise<void>((resolve) => (this.#wake = resolve))
        if (this.#chunks.length > 0) yield this.#take()
        else if (this.#end?.error !== undefined) throw this.#end.error
        else return
      }
    } finally {
      if (this.#end === undefined) this.#controller?.abort(new Error('the rest of the answer is not wanted'))
    }
  }

  #isDue(): boolean {
    if (this.#end !== undefined) return true
    return this.#chunks.length > 0 && this.#timer === undefined
  }

  #take(): Buffer {
    const [first] = this.#chunks
    const bytes = this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks)
    this.#chunks = []
    this.#held = 0
    this.#handedAtMs = performance.now()
    if (this.#controller?.paused === true) this.#controller.resume()
    return bytes
  }

  #finish(error: Error | undefined): void {
    this.#end ??= { error }
    this.#signal.removeEventListener('abort', this.#onAbort)
    this.#wakeUp()
  }

  #wakeUp(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }
}

function abortReason(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the request was aborted', { cause: signal.reason })
}
