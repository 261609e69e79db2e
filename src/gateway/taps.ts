/** @file Lets a recording see every exchange that asks for an answer, as it came and as it ended. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ExecutionId } from '../core/ids.ts'
import type { Execution } from './execution.ts'
import type { RequestHeaders } from './forward.ts'
import type { ModelCall } from './model-call.ts'

/** When a request met the tree: what a replay needs to repeat a session with parallel calls. */
export interface TappedMatch {
  /** Counts the exchanges of the gateway that got a call, in the order they did, from 0. */
  readonly order: number
  /** Calls of the execution that were in its tree by then. */
  readonly committedBefore: number
}

export interface TappedExchange {
  readonly executionId: ExecutionId
  /** Counts the exchanges of the gateway by arrival, from 0. */
  readonly arrival: number
  /** What follows the execution's base URL, with the query. */
  readonly path: string
  readonly headers: RequestHeaders
  /** As parsed from JSON; undefined when it could not be read. */
  readonly body: unknown
  /** The call that answered it: a new one, or the one it repeats. undefined when it was refused. */
  readonly call: ModelCall | undefined
  /** undefined when it was refused. */
  readonly match: TappedMatch | undefined
  /** HTTP status of the answer; 0 when the client left before there was one. */
  readonly status: number
  /** False when the client left before the end. */
  readonly isComplete: boolean
  readonly startedAtMs: number
  readonly endedAtMs: number
}

/** What is known of an exchange while it runs. */
export interface OpenExchange {
  body: unknown
  call: ModelCall | undefined
}

export interface TapListeners {
  /** Told of an exchange when it is over. */
  readonly onExchange?: ((exchange: TappedExchange) => void) | undefined
  /** Told when the request of an exchange has met the tree. */
  readonly onMatch?: ((arrival: number) => void) | undefined
}

export class ExchangeTaps {
  readonly #listeners: TapListeners
  #arrivals = 0
  #matches = 0

  constructor(listeners: TapListeners) {
    this.#listeners = listeners
  }

  /** undefined when nobody listens. */
  open(
    execution: Execution,
    url: string,
    { headers }: IncomingMessage,
    response: ServerResponse,
    now: () => number,
  ): OpenExchange | undefined {
    const { onExchange, onMatch } = this.#listeners
    if (onExchange === undefined && onMatch === undefined) return undefined
    const arrival = this.#arrivals++
    const startedAtMs = now()
    const open = new WatchedExchange(() => {
      onMatch?.(arrival)
      return { order: this.#matches++, committedBefore: execution.tree.nextSequence }
    })
    response.once('close', () => {
      onExchange?.({
        executionId: execution.spec.executionId,
        arrival,
        path: url.replace(/^\/x\/[^/]+/, ''),
        headers,
        body: open.body,
        call: open.call,
        match: open.match,
        status: response.headersSent ? response.statusCode : 0,
        isComplete: response.writableFinished,
        startedAtMs,
        endedAtMs: now(),
      })
    })
    return open
  }
}

/** A call is given to it in the same turn of the event loop in which its request was matched. */
class WatchedExchange implements OpenExchange {
  body: unknown
  match: TappedMatch | undefined
  readonly #onCall: () => TappedMatch
  #call: ModelCall | undefined

  constructor(onCall: () => TappedMatch) {
    this.#onCall = onCall
  }

  get call(): ModelCall | undefined {
    return this.#call
  }

  set call(call: ModelCall | undefined) {
    this.#call = call
    this.match ??= this.#onCall()
  }
}
