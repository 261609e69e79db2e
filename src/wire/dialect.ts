/** @file What a dialect is: a request body in, canonical items out; answer parts in, frames out. Pure. */
import type { FinishReason, Item, Json, SystemItem, ToolCall, ToolSpec, Usage } from '../core/items.ts'

/** What a request says outside its body. */
export interface RequestTarget {
  /** Model named by the path; undefined where the body names it. */
  readonly model?: string
  /** Whether the path asks for a stream; undefined where the body says so. */
  readonly stream?: boolean
}

/** Everything a body says beside its conversation. */
export interface Envelope {
  readonly model: string
  /** Those of the header; deferred ones are only in `deferredTools`. */
  readonly tools: readonly ToolSpec[]
  /** Every tool that the conversation may refer to, by name; empty in dialects that know no references. */
  readonly deferredTools: ReadonlyMap<string, ToolSpec>
  /** System text that stands before the conversation. */
  readonly system: readonly SystemItem[]
  readonly stream: boolean
  /** What the harness asked for; undefined when it left the bound to us. [tokens] */
  readonly maxTokens: number | undefined
  /** True when a streamed answer ends with a frame of token counts. */
  readonly includeUsage: boolean
  /** What the harness would like; the execution's own sampling wins. */
  readonly hints: { readonly temperature: number | undefined; readonly topP: number | undefined }
}

/** A request as the gateway works with it. */
export interface ParsedRequest extends Envelope {
  /** Tools first, then system, then the conversation as it was sent. */
  readonly items: readonly Item[]
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
  /** What the harness asked for; undefined when it left the bound to us. [tokens] */
  readonly maxTokens?: number | undefined
  readonly includeUsage: boolean
  /** The tools of the request: what a served name stands for in the dialect. */
  readonly tools: readonly ToolSpec[]
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

export type DialectName = 'openai-chat' | 'openai-responses' | 'anthropic' | 'gemini'

export interface Dialect {
  readonly name: DialectName
  /** The field of a body that holds the conversation, a list. */
  readonly conversation: 'messages' | 'input' | 'contents'
  /** True when one turn of the policy may be several elements of the conversation in a row. */
  readonly splitsTurns: boolean
  /** The list that another way of giving the conversation stands for; any other value comes back as it is. */
  readonly listOf?: (conversation: unknown) => unknown
  /**
   * Reads everything but the conversation, which is not looked at.
   * @throws GyreError E_WIRE_MALFORMED or E_WIRE_UNSUPPORTED, naming the place in the body.
   */
  parseEnvelope(body: unknown, target: RequestTarget): Envelope
  /**
   * Reads one element of the conversation by itself, so that a longer history costs only its new elements.
   * @param path Names the element in errors.
   * @throws GyreError E_WIRE_MALFORMED or E_WIRE_UNSUPPORTED.
   */
  parseElement(element: unknown, path: string, envelope: Envelope): readonly Item[]
  answerStream(head: AnswerHead): AnswerStream
  /** The body of an answer that is not streamed. */
  answerBody(head: AnswerHead, parts: readonly AnswerPart[], finishReason: FinishReason, usage: Usage): Json
  /** The body that answers a request to count. */
  countBody(promptTokens: number): Json
  /** The list of the one model there is; `createdS` in seconds since the Unix epoch. */
  modelsBody(model: string, createdS: number): Json
  faultBody(fault: Fault): Json
}
