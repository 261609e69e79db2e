/** @file What a dialect is: a request body in, canonical items out; answer parts in, frames out. Pure. */
import type { FinishReason, Item, Json, ToolCall, Usage } from '../core/items.ts'

/** A request as the gateway works with it. */
export interface ParsedRequest {
  readonly model: string
  /** Tools first, then system, then the conversation as it was sent. */
  readonly items: readonly Item[]
  readonly stream: boolean
  /** What the harness asked for; undefined when it left the bound to us. [tokens] */
  readonly maxTokens: number | undefined
  /** True when a streamed answer ends with a frame of token counts. */
  readonly includeUsage: boolean
  /** What the harness would like; the execution's own sampling wins. */
  readonly hints: { readonly temperature: number | undefined; readonly topP: number | undefined }
}

/** A piece of an answer, in the order the policy produced it. A tool call comes whole. */
export type AnswerPart =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'thinking'; readonly text: string }
  | { readonly kind: 'tool-call'; readonly call: ToolCall }

/** What every frame of one answer repeats. */
export interface AnswerHead {
  /** Unique; the dialect adds its own prefix. */
  readonly answerId: string
  readonly model: string
  /** Seconds since the Unix epoch. */
  readonly createdS: number
  /** [tokens] */
  readonly promptTokens: number
  readonly includeUsage: boolean
}

/** Writes one streamed answer. Every method returns complete SSE frames, possibly none. */
export interface AnswerStream {
  open(): string
  part(part: AnswerPart): string
  /** A typed frame that says nothing, to keep the connection and the client's idle timer alive. */
  keepAlive(): string
  close(finishReason: FinishReason, usage: Usage): string
  /** Ends a stream that cannot be finished, in the dialect's own error shape. */
  fail(fault: Fault): string
}

/** Why a request is refused, before a dialect gives it a shape. */
export type FaultKind =
  | 'malformed'
  | 'unsupported'
  | 'overlong'
  | 'unauthorized'
  | 'not-found'
  | 'method'
  | 'too-large'
  | 'call-limit'
  | 'gone'
  | 'internal'

export interface Fault {
  readonly kind: FaultKind
  /** Stable code of docs/errors.md. */
  readonly code: string
  readonly message: string
}

/** HTTP status of a fault. None of them but `internal` is retried by the clients' SDKs. */
export const FAULT_STATUS: Readonly<Record<FaultKind, number>> = {
  malformed: 400,
  unsupported: 400,
  overlong: 400,
  unauthorized: 401,
  'not-found': 404,
  method: 405,
  'too-large': 413,
  'call-limit': 403,
  gone: 410,
  internal: 500,
}

export interface Dialect {
  readonly name: 'openai-chat' | 'anthropic'
  /** @throws GyreError E_WIRE_MALFORMED or E_WIRE_UNSUPPORTED, naming the place in the body. */
  parseRequest(body: unknown): ParsedRequest
  answerStream(head: AnswerHead): AnswerStream
  /** The body of an answer that is not streamed. */
  answerBody(head: AnswerHead, parts: readonly AnswerPart[], finishReason: FinishReason, usage: Usage): Json
  faultBody(fault: Fault): Json
}
