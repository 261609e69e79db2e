/** @file Writes a call's answer to a client: as it grows, or whole at its end. */
import type { ServerResponse } from 'node:http'
import { joinedParts } from '../wire/answer-parts.ts'
import { FAULT_STATUS } from '../wire/dialect.ts'
import type { AnswerHead, AnswerStream, Dialect, Fault } from '../wire/dialect.ts'
import { faultOf } from './faults.ts'
import type { ModelCall } from './model-call.ts'

/** Ends when the answer is written or the client has gone. */
export async function respond(
  response: ServerResponse,
  call: ModelCall,
  dialect: Dialect,
  head: AnswerHead,
  isStreamed: boolean,
  keepAliveMs: number,
): Promise<void> {
  const detach = call.attach()
  if (response.closed || response.destroyed) detach()
  else response.once('close', detach)
  if (isStreamed) await stream(response, call, dialect, head, keepAliveMs)
  else await sendWhole(response, call, dialect, head, keepAliveMs)
}

/** Headers and the opening frame go out at once: some clients give up after 60 s without them. */
async function stream(
  response: ServerResponse,
  call: ModelCall,
  dialect: Dialect,
  head: AnswerHead,
  keepAliveMs: number,
): Promise<void> {
  const frames = dialect.answerStream(head)
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
  response.write(frames.open())
  await new Promise<void>((resolve) => new StreamWriter(response, call, frames, keepAliveMs, resolve))
}

/** Writes what came within one turn of the event loop at once: a token costs far less than a write. */
class StreamWriter {
  readonly #response: ServerResponse
  readonly #call: ModelCall
  readonly #frames: AnswerStream
  readonly #unwatch: () => void
  readonly #silence: NodeJS.Timeout
  readonly #onDone: () => void
  /** Parts that were written. */
  #written = 0
  #isDue = false

  constructor(
    response: ServerResponse,
    call: ModelCall,
    frames: AnswerStream,
    keepAliveMs: number,
    onDone: () => void,
  ) {
    this.#response = response
    this.#call = call
    this.#frames = frames
    this.#onDone = onDone
    this.#silence = setInterval(() => response.write(frames.keepAlive()), keepAliveMs)
    this.#unwatch = call.watch(() => this.#schedule())
    response.once('close', () => this.#end())
    this.#schedule()
  }

  #schedule(): void {
    if (this.#isDue) return
    this.#isDue = true
    setImmediate(() => this.#write())
  }

  #write(): void {
    this.#isDue = false
    if (this.#response.closed) return this.#end()
    const { parts, state } = this.#call
    const fresh = joinedParts(parts.slice(this.#written)).map((part) => this.#frames.part(part))
    this.#written = parts.length
    if (state.kind === 'running') {
      if (fresh.length === 0) return
      this.#silence.refresh()
      this.#response.write(fresh.join(''))
    } else {
      if (state.kind === 'answered') fresh.push(this.#frames.close(state.finishReason, state.usage))
      else fresh.push(this.#frames.fail(faultOf(state.error)))
      this.#end()
      this.#response.end(fresh.join(''))
    }
  }

  #end(): void {
    clearInterval(this.#silence)
    this.#unwatch()
    this.#onDone()
  }
}

/**
 * The status waits for the answer as long as a client may be expected to; then blanks, which JSON allows in front,
 * keep the connection alive. A failure after that can only be shown by breaking the connection.
 */
async function sendWhole(
  response: ServerResponse,
  call: ModelCall,
  dialect: Dialect,
  head: AnswerHead,
  keepAliveMs: number,
): Promise<void> {
  while (call.state.kind === 'running' && !response.closed) {
    if (await call.progress(call.parts.length, keepAliveMs)) continue
    if (response.closed) return
    if (!response.headersSent) response.writeHead(200, { 'content-type': 'application/json' })
    response.write(' ')
  }
  if (response.closed) return
  const { state } = call
  if (state.kind === 'answered') {
    const body = dialect.answerBody(head, call.parts, state.finishReason, state.usage)
    if (!response.headersSent) response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify(body))
  } else if (state.kind === 'failed' && !response.headersSent) {
    sendFault(response, dialect, faultOf(state.error))
  } else {
    response.destroy()
  }
}

export function sendFault(response: ServerResponse, dialect: Dialect, fault: Fault): void {
  sendJson(response, FAULT_STATUS[fault.kind], dialect.faultBody(fault))
}

export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}
