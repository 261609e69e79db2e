/**
 * @file The body of an answer that comes in many small pieces, handed out in fewer larger ones.
 *
 * The first piece is handed out at once. After each, the connection is not read for a moment, and then what has come
 * is read as one piece: the work of reading and of all that follows is done once for several tokens.
 */
import type { Dispatcher, Pool } from 'undici'
import { Cadence } from './cadence.ts'
import type { PacedOptions, PacedReads } from './paced-reads.ts'

/** A read that brings this much has left more behind, which is read at once. [bytes] */
const FULL_READ = 32 * 1024
/** One for all streams of the process: they share its time. */
const cadence = new Cadence()

export interface GatheredAnswer {
  readonly statusCode: number
  readonly body: GatheredBody
}

/**
 * @param pool of `pacedPool`.
 * @throws what the request failed with before its headers.
 */
export async function gatheredRequest(
  pool: Pool,
  options: Dispatcher.DispatchOptions,
  signal: AbortSignal,
): Promise<GatheredAnswer> {
  return new Promise((resolve, reject) => {
    const body = new GatheredBody(signal, resolve, reject)
    const paced: PacedOptions = { ...options, onReads: (reads) => body.comesBy(reads) }
    pool.dispatch(paced, body)
  })
}

export class GatheredBody implements Dispatcher.DispatchHandler {
  readonly #signal: AbortSignal
  readonly #resolve: (answer: GatheredAnswer) => void
  readonly #reject: (error: unknown) => void
  readonly #onAbort = (): void => this.#controller?.abort(abortReason(this.#signal))
  #controller: Dispatcher.DispatchController | undefined
  #reads: PacedReads | undefined
  #chunks: Buffer[] = []
  /** Size of the piece the caller works on. [bytes] */
  #handed = 0
  #end: { readonly error: Error | undefined } | undefined
  #wake: (() => void) | undefined
  #isPaced = false
  #isHasty = false
  #isWaiting = false

  constructor(signal: AbortSignal, resolve: (answer: GatheredAnswer) => void, reject: (error: unknown) => void) {
    this.#signal = signal
    this.#resolve = resolve
    this.#reject = reject
  }

  comesBy(reads: PacedReads): void {
    this.#reads = reads
  }

  /** From now on whatever comes is handed out at once: the end is near. */
  hasten(): void {
    this.#isHasty = true
    this.#free()
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

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#chunks.push(chunk)
    if (!this.#isPaced && !this.#isHasty) this.#pace()
    this.#wakeUp()
  }

  onResponseEnd(): void {
    this.#finish(undefined)
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#reject(error)
    this.#finish(error)
  }

  /**
   * The next piece, which the caller is done with when it asks again; undefined at the end.
   * @throws what the answer broke off with.
   */
  async next(): Promise<Buffer | undefined> {
    if (this.#handed > 0) this.#readOn(this.#handed)
    while (this.#chunks.length === 0 && this.#end === undefined) {
      await new Promise<void>((resolve) => (this.#wake = resolve))
    }
    if (this.#chunks.length > 0) return this.#take()
    if (this.#end?.error !== undefined) throw this.#end.error
    return undefined
  }

  /** Nobody asks again: ends the request when its answer has not ended. */
  leave(): void {
    if (this.#end === undefined) this.#controller?.abort(new Error('the rest of the answer is not wanted'))
  }

  #take(): Buffer {
    const [first] = this.#chunks
    const bytes = this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks)
    this.#chunks = []
    this.#handed = bytes.length
    return bytes
  }

  /** A reader that is slow makes the server wait. */
  #readOn(bytes: number): void {
    this.#handed = 0
    if (!this.#isPaced || this.#isWaiting) return
    if (bytes >= FULL_READ) return this.#reads?.next()
    this.#isWaiting = true
    cadence.afterWait(() => {
      this.#isWaiting = false
      if (this.#isPaced) this.#reads?.next()
    })
  }

  #finish(error: Error | undefined): void {
    this.#end ??= { error }
    this.#signal.removeEventListener('abort', this.#onAbort)
    this.#free()
    this.#wakeUp()
  }

  #pace(): void {
    this.#isPaced = true
    cadence.open()
    this.#reads?.pace()
  }

  #free(): void {
    if (!this.#isPaced) return
    this.#isPaced = false
    cadence.close()
    this.#reads?.free()
  }

  #wakeUp(): void {
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }
}

function abortReason(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the request was aborted', { cause: signal.reason })
}
