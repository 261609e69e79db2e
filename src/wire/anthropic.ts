/** @file Anthropic Messages: answers and errors. Requests are in anthropic-request.ts. */
import type { FinishReason, Json, ToolCall, Usage } from '../core/items.ts'
import { argumentsOf, joinedParts } from './answer-parts.ts'
import { parseAnthropicEnvelope, parseAnthropicMessage } from './anthropic-request.ts'
import type { AnswerHead, AnswerPart, AnswerStream, Dialect, Fault, FaultKind } from './dialect.ts'
import { sseFrame } from './sse.ts'

const STOP_REASON: Readonly<Record<FinishReason, string>> = {
  stop: 'end_turn',
  'tool-calls': 'tool_use',
  length: 'max_tokens',
}

const ERROR_TYPE: Readonly<Record<FaultKind, string>> = {
  malformed: 'invalid_request_error',
  unsupported: 'invalid_request_error',
  overlong: 'invalid_request_error',
  unauthorized: 'authentication_error',
  'not-found': 'not_found_error',
  method: 'invalid_request_error',
  'too-large': 'request_too_large',
  'call-limit': 'permission_error',
  gone: 'permission_error',
  internal: 'api_error',
}

export const anthropic: Dialect = {
  name: 'anthropic',
  conversation: 'messages',
  splitsTurns: false,
  parseEnvelope: parseAnthropicEnvelope,
  parseElement: parseAnthropicMessage,
  answerStream: (head) => new EventStream(head),
  answerBody,
  countBody: (promptTokens) => ({ input_tokens: promptTokens }),
  modelsBody,
  faultBody,
}

function modelsBody(model: string, createdS: number): Json {
  const created = new Date(createdS * 1000).toISOString()
  const entry = { type: 'model', id: model, display_name: model, created_at: created }
  return { data: [entry], has_more: false, first_id: model, last_id: model }
}

class EventStream implements AnswerStream {
  readonly #head: AnswerHead
  /** Kind of the content block that is open, and how many were opened. */
  #open: 'text' | 'thinking' | undefined
  #blocks = 0

  constructor(head: AnswerHead) {
    this.#head = head
  }

  open(): string {
    const usage = usageBody({ promptTokens: this.#head.promptTokens, cachedTokens: 0, completionTokens: 0 })
    const message = { ...envelope(this.#head), content: [], stop_reason: null, stop_sequence: null, usage }
    return event({ type: 'message_start', message })
  }

  part(part: AnswerPart): string {
    if (part.kind === 'tool-call') return this.#endBlock() + this.#toolUse(part.call)
    const start = this.#open === part.kind ? '' : this.#endBlock() + this.#startBlock(part.kind)
    return start + this.#delta(textDelta(part))
  }

  keepAlive(): string {
    return event({ type: 'ping' })
  }

  close(finishReason: FinishReason, usage: Usage): string {
    const delta = { stop_reason: STOP_REASON[finishReason], stop_sequence: null }
    return (
      this.#endBlock() +
      event({ type: 'message_delta', delta, usage: usageBody(usage) }) +
      event({ type: 'message_stop' })
    )
  }

  fail(fault: Fault): string {
    return sseFrame(JSON.stringify(faultBody(fault)), 'error')
  }

  #startBlock(kind: 'text' | 'thinking'): string {
    this.#open = kind
    const block = kind === 'text' ? { type: kind, text: '' } : { type: kind, thinking: '', signature: '' }
    return event({ type: 'content_block_start', index: this.#blocks, content_block: block })
  }

  #endBlock(): string {
    if (this.#open === undefined) return ''
    const signature = { type: 'signature_delta', signature: signatureOf(this.#head, this.#blocks) }
    const signed = this.#open === 'thinking' ? this.#delta(signature) : ''
    this.#open = undefined
    return signed + event({ type: 'content_block_stop', index: this.#blocks++ })
  }

  #toolUse(call: ToolCall): string {
    const block = { type: 'tool_use', id: call.id, name: call.name, input: {} }
    return (
      event({ type: 'content_block_start', index: this.#blocks, content_block: block }) +
      this.#delta({ type: 'input_json_delta', partial_json: call.argumentsText }) +
      event({ type: 'content_block_stop', index: this.#blocks++ })
    )
  }

  #delta(delta: Json): string {
    return event({ type: 'content_block_delta', index: this.#blocks, delta })
  }
}

function answerBody(head: AnswerHead, parts: readonly AnswerPart[], finishReason: FinishReason, usage: Usage): Json {
  return {
    ...envelope(head),
    content: joinedParts(parts).map((part, index) => contentBlock(head, part, index)),
    stop_reason: STOP_REASON[finishReason],
    stop_sequence: null,
    usage: usageBody(usage),
  }
}

/** The blocks a stream of the same parts would have opened. */
function contentBlock(head: AnswerHead, part: AnswerPart, index: number): Json {
  if (part.kind === 'text') return { type: 'text', text: part.text }
  if (part.kind === 'thinking') return { type: 'thinking', thinking: part.text, signature: signatureOf(head, index) }
  return { type: 'tool_use', id: part.call.id, name: part.call.name, input: argumentsOf(part.call) }
}

/** The API signs thinking, and clients send the signature back with it. Ours is read by nobody. */
function signatureOf(head: AnswerHead, index: number): string {
  return `gyre-${head.answerId}-${index}`
}

function textDelta(part: Exclude<AnswerPart, { kind: 'tool-call' }>): Json {
  return part.kind === 'text'
    ? { type: 'text_delta', text: part.text }
    : { type: 'thinking_delta', thinking: part.text }
}

function envelope(head: AnswerHead): { readonly [key: string]: Json } {
  return { id: `msg_${head.answerId}`, type: 'message', role: 'assistant', model: head.model }
}

/** The parts sum to the whole prompt, however much of it an engine had cached: harnesses decide by the sum. */
function usageBody(usage: Usage): Json {
  return {
    input_tokens: usage.promptTokens - usage.cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: usage.cachedTokens,
    output_tokens: usage.completionTokens,
  }
}

function event(body: { readonly type: string; readonly [key: string]: Json }): string {
  return sseFrame(JSON.stringify(body), body.type)
}

function faultBody(fault: Fault): Json {
  return { type: 'error', error: { type: ERROR_TYPE[fault.kind], message: fault.message } }
}
