/**
 * @file Connections whose reads can be spaced out.
 *
 * A server that streams tokens sends a packet for each of them. Reading each costs more than all the work on its text,
 * so between two reads the packets stay with the kernel, and one read takes all that have come.
 */
import type { Socket } from 'node:net'
import { Client, Pool } from 'undici'
import type { Dispatcher, buildConnector } from 'undici'

/** Lets no read go ahead of the one that was asked for: any packet fills the buffer. [bytes] */
const READ_AHEAD = 1

export interface PacedOptions extends Dispatcher.DispatchOptions {
  /** Told which reads bring the answer, before the request is sent. */
  readonly onReads?: (reads: PacedReads) => void
}

type PoolOptions = Omit<Pool.Options, 'factory' | 'connect'>

/** A pool whose requests learn of the reads of their connection. */
export function pacedPool(origin: string, options: PoolOptions, connectTimeoutMs: number): Pool {
  const sockets = { highWaterMark: undefined, readableHighWaterMark: READ_AHEAD }
  const connect: Partial<buildConnector.BuildOptions> = { timeout: connectTimeoutMs, ...sockets }
  return new Pool(origin, {
    ...options,
    connect,
    factory: (at, given) => new PacedClient(at, given),
  })
}

/** The reads of one connection. Free at first: each starts when its bytes are wanted. */
export class PacedReads {
  #isPaced = false
  #isNextDue = false
  #held: (() => void) | undefined

  watch(socket: Socket): void {
    // oxlint-disable-next-line no-underscore-dangle -- what streams name the start of a read
    const read = socket._read.bind(socket)
    this.#held = undefined
    // oxlint-disable-next-line no-underscore-dangle -- as above
    socket._read = (size) => {
      if (this.#isPaced && !this.#isNextDue) this.#held = () => read(size)
      else {
        this.#isNextDue = false
        read(size)
      }
    }
  }

  /** From now on each read waits for `next`. */
  pace(): void {
    this.#isPaced = true
  }

  /** Lets one read begin. */
  next(): void {
    this.#isNextDue = this.#held === undefined
    this.#begin()
  }

  /** Lets all reads begin that are wanted. */
  free(): void {
    this.#isPaced = false
    this.#isNextDue = false
    this.#begin()
  }

  #begin(): void {
    const held = this.#held
    this.#held = undefined
    held?.()
  }
}

class PacedClient extends Client {
  readonly #reads: PacedReads

  constructor(origin: URL, { connect, ...options }: Client.Options) {
    const reads = new PacedReads()
    if (typeof connect !== 'function') throw new TypeError('the pool gives its clients a function that connects')
    super(origin, {
      ...options,
      connect: (to: buildConnector.Options, callback: buildConnector.Callback) =>
        connect(to, (...[error, socket]: Parameters<buildConnector.Callback>) => {
          if (error !== null) return callback(error, null)
          reads.watch(socket)
          callback(null, socket)
        }),
    })
    this.#reads = reads
  }

  override dispatch(options: PacedOptions, handler: Dispatcher.DispatchHandler): boolean {
    options.onReads?.(this.#reads)
    return super.dispatch(options, handler)
  }
}
