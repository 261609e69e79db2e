/** @file Writes a call's answer to a client: as it grows, or whole at its end. */
import type { ServerResponse } from 'node:http'
import { FAULT_STATUS } from '../wire/dialect.ts'
import type { AnswerHead, Dialect, Fault } from '../wire/dialect.ts'
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
  let seen = 0
  while (!response.closed) {
    const fresh = call.parts.slice(seen)
    seen += fresh.length
    if (fresh.length > 0) response.write(fresh.map((part) => frames.part(part)).join(''))
    else if (call.state.kind !== 'running') break
    else if (!(await call.progress(seen, keepAliveMs)) && !response.closed) response.write(frames.keepAlive())
  }
  if (response.closed) return
  const { state } = call
  if (state.kind === 'answered') response.write(frames.close(state.finishReason, state.usage))
  if (state.kind === 'failed') response.write(frames.fail(faultOf(state.error)))
  response.end()
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
