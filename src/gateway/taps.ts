/** @file Lets a recording see every exchange that asks for an answer, as it came and as it ended. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ExecutionId } from '../core/ids.ts'
import type { Execution } from './execution.ts'
import type { RequestHeaders } from './forward.ts'
import type { ModelCall } from './model-call.ts'

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

export class ExchangeTaps {
  readonly #onExchange: ((exchange: TappedExchange) => void) | undefined
  #arrivals = 0

  constructor(onExchange: ((exchange: TappedExchange) => void) | undefined) {
    this.#onExchange = onExchange
  }

  /** undefined when nobody listens. */
  open(
    execution: Execution,
    url: string,
    { headers }: IncomingMessage,
    response: ServerResponse,
    now: () => number,
  ): OpenExchange | undefined {
    const tell = this.#onExchange
    if (tell === undefined) return undefined
    const arrival = this.#arrivals++
    const startedAtMs = now()
    const open: OpenExchange = { body: undefined, call: undefined }
    response.once('close', () => {
      tell({
        executionId: execution.spec.executionId,
        arrival,
        path: url.replace(/^\/x\/[^/]+/, ''),
        headers,
        body: open.body,
        call: open.call,
        status: response.headersSent ? response.statusCode : 0,
        isComplete: response.writableFinished,
        startedAtMs,
        endedAtMs: now(),
      })
    })
    return open
  }
}
