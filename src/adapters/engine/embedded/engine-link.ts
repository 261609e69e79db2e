/** @file The host's end of the worker: matches answers to calls, and turns token messages into streams. */
import type { Worker } from 'node:worker_threads'
import { GyreError } from '../../../core/errors.ts'
import type { GenerateEvent, GenerateRequest } from '../../../ports/engine.ts'
import type { Command, CommandResult, FromWorker, TokenChunk, ToWorker, WireError } from './messages.ts'

interface Pending {
  readonly resolve: (result: CommandResult) => void
  readonly reject: (error: Error) => void
}

/** Events of one generation that the consumer has not taken yet. */
class Stream {
  readonly events: GenerateEvent[] = []
  error: Error | undefined
  wake: () => void = () => {}

  push(...events: readonly GenerateEvent[]): void {
    this.events.push(...events)
    this.wake()
  }

  fail(error: Error): void {
    this.error ??= error
    this.wake()
  }
}

/** How long a worker may take to end by itself. [ms] */
const CLOSE_MS = 2000

export class EngineLink {
  readonly #workers: readonly Worker[]
  readonly #pending = new Map<number, Pending>()
  readonly #streams = new Map<number, Stream>()
  /** Id 0 is the start of the leader. */
  #nextId = 1
  #ended: Error | undefined
  readonly #ready: Promise<CommandResult>

  constructor(workers: readonly Worker[]) {
    this.#workers = workers
    this.#ready = new Promise((resolve, reject) => {
      this.#pending.set(0, { resolve, reject })
    })
    for (const worker of workers) {
      worker.on('error', (error) => this.#end(crashed(error)))
      worker.on('exit', () => this.#end(crashed(undefined)))
    }
    workers[0]?.on('message', (message: FromWorker) => this.#receive(message))
  }

  /** Resolves when the weights are in place. */
  async ready(): Promise<void> {
    try {
      await this.#ready
    } catch (error) {
      await this.#terminate()
      throw error
    }
  }

  /** @throws GyreError E_ENGINE_CLOSED, E_ENGINE_CRASHED. */
  checkOpen(): void {
    if (this.#ended !== undefined) throw this.#ended
  }

  /** @param transfer buffers that the command gives away. */
  command(command: Command, transfer: readonly ArrayBuffer[] = []): Promise<CommandResult> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended)
    const id = this.#nextId++
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject })
      this.#send({ kind: 'command', id, command }, transfer)
    })
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent> {
    if (this.#ended !== undefined) throw this.#ended
    if (signal.aborted) throw cancelled()
    const id = this.#nextId++
    const stream = new Stream()
    this.#streams.set(id, stream)
    const abort = (): void => stream.fail(cancelled())
    signal.addEventListener('abort', abort, { once: true })
    const { executionId, promptIds, sampling } = request
    this.#send({ kind: 'generate', id, executionId, promptIds, sampling })
    let isComplete = false
    try {
      while (!isComplete) {
        const event = stream.events.shift()
        if (event !== undefined) {
          isComplete = event.kind === 'end'
          yield event
        } else if (stream.error !== undefined) throw stream.error
        else await new Promise<void>((resolve) => (stream.wake = resolve))
      }
    } finally {
      signal.removeEventListener('abort', abort)
      this.#streams.delete(id)
      if (!isComplete) this.#send({ kind: 'cancel', id })
    }
  }

  /** Ends the threads. Commands made before are answered first. Idempotent. */
  async close(): Promise<void> {
    if (this.#ended === undefined) {
      const deadline = new Promise<void>((resolve) => setTimeout(resolve, CLOSE_MS).unref())
      await Promise.race([this.command({ kind: 'close' }).catch(() => {}), deadline])
      this.#end(closed())
    }
    await this.#terminate()
  }

  #send(message: ToWorker, transfer: readonly ArrayBuffer[] = []): void {
    if (this.#ended === undefined) this.#workers[0]?.postMessage(message, transfer)
  }

  #receive(message: FromWorker): void {
    switch (message.kind) {
      case 'ready':
        this.#settle(0)?.resolve(undefined)
        return
      case 'done':
        this.#settle(message.id)?.resolve(message.result)
        return
      case 'failed':
        this.#settle(message.id)?.reject(errorOf(message.error))
        return
      case 'tokens':
        for (const chunk of message.chunks) this.#deliver(chunk)
        return
      default:
        message satisfies never
    }
  }

  #settle(id: number): Pending | undefined {
    const pending = this.#pending.get(id)
    this.#pending.delete(id)
    return pending
  }

  #deliver({ id, tokenIds, logprobs, policyVersions, end, error }: TokenChunk): void {
    const stream = this.#streams.get(id)
    if (tokenIds.length > 0) stream?.push({ kind: 'tokens', tokenIds, logprobs, policyVersions })
    if (end !== undefined) stream?.push({ kind: 'end', ...end })
    if (error !== undefined) stream?.fail(errorOf(error))
  }

  #end(error: Error): void {
    this.#ended ??= error
    for (const { reject } of this.#pending.values()) reject(this.#ended)
    this.#pending.clear()
    for (const stream of this.#streams.values()) stream.fail(this.#ended)
  }

  async #terminate(): Promise<void> {
    await Promise.all(this.#workers.map((w) => w.terminate()))
  }
}

function errorOf({ message, boundary, code }: WireError): Error {
  return boundary === undefined || code === undefined ? new Error(message) : new GyreError(message, { boundary, code })
}

function cancelled(): GyreError {
  return new GyreError('the generation was cancelled', { boundary: 'engine', code: 'E_ENGINE_CANCELLED' })
}

function closed(): GyreError {
  return new GyreError('the engine is closed', { boundary: 'engine', code: 'E_ENGINE_CLOSED' })
}

function crashed(cause: Error | undefined): GyreError {
  const message = 'a thread of the engine ended unasked: start the cell again'
  return new GyreError(message, { boundary: 'engine', code: 'E_ENGINE_CRASHED', retryable: true, cause })
}
