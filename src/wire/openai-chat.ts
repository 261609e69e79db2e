/** @file OpenAI Chat Completions: answers and errors. Requests are in openai-chat-request.ts. */
import type { FinishReason, Json, ToolCall, Usage } from '../core/items.ts'
import { FAULT_STATUS } from './dialect.ts'
import type { AnswerHead, AnswerPart, AnswerStream, Dialect, Fault } from './dialect.ts'
import { parseOpenAiChatEnvelope, parseOpenAiChatMessage } from './openai-chat-request.ts'
import { sseFrame } from './sse.ts'

const FINISH_REASON: Readonly<Record<FinishReason, string>> = {
  stop: 'stop',
  'tool-calls': 'tool_calls',
  length: 'length',
}

export const openAiChat: Dialect = {
  name: 'openai-chat',
  conversation: 'messages',
  splitsTurns: false,
  parseEnvelope: parseOpenAiChatEnvelope,
  parseElement: parseOpenAiChatMessage,
  answerStream: (head) => new ChunkStream(head),
  answerBody,
  countBody: (promptTokens) => ({ input_tokens: promptTokens }),
  modelsBody: openAiModelsBody,
  faultBody: openAiFaultBody,
}

/** The list both dialects of OpenAI share. */
export function openAiModelsBody(model: string, createdS: number): Json {
  return { object: 'list', data: [{ id: model, object: 'model', created: createdS, owned_by: 'gyre' }] }
}

class ChunkStream implements AnswerStream {
  readonly #head: AnswerHead
  /** Of every frame: its JSON text without the closing brace. */
  readonly #envelope: string
  #toolCalls = 0

  constructor(head: AnswerHead) {
    this.#head = head
    this.#envelope = JSON.stringify(envelope(head, 'chat.completion.chunk')).slice(0, -1)
  }

  open(): string {
    return this.#delta({ role: 'assistant', content: '' })
  }

  part(part: AnswerPart): string {
    if (part.kind === 'text') return this.#delta({ content: part.text })
    if (part.kind === 'thinking') return this.#delta({ reasoning_content: part.text })
    const index = this.#toolCalls++
    return this.#delta({ tool_calls: [{ index, ...toolCallBody(part.call) }] })
  }

  keepAlive(): string {
    return this.#chunk([])
  }

  close(finishReason: FinishReason, usage: Usage): string {
    const end = this.#chunk([{ index: 0, delta: {}, finish_reason: FINISH_REASON[finishReason] }])
    const counts = this.#head.includeUsage ? this.#chunk([], { usage: usageBody(usage) }) : ''
    return end + counts + sseFrame('[DONE]')
  }

  fail(fault: Fault): string {
    return sseFrame(JSON.stringify(openAiFaultBody(fault)))
  }

  #delta(delta: Json): string {
    const choice = `{"index":0,"delta":${JSON.stringify(delta)},"finish_reason":null}`
    return sseFrame(`${this.#envelope},"choices":[${choice}]}`)
  }

  #chunk(choices: readonly Json[], extra: { readonly usage?: Json } = {}): string {
    return sseFrame(`${this.#envelope},${JSON.stringify({ choices, ...extra }).slice(1)}`)
  }
}

function answerBody(head: AnswerHead, parts: readonly AnswerPart[], finishReason: FinishReason, usage: Usage): Json {
  const joined = (kind: 'text' | 'thinking'): string =>
    parts.map((part) => (part.kind !== 'tool-call' && part.kind === kind ? part.text : '')).join('')
  const toolCalls = parts.flatMap((part) => (part.kind === 'tool-call' ? [toolCallBody(part.call)] : []))
  const [text, thinking] = [joined('text'), joined('thinking')]
  const message = {
    role: 'assistant',
    content: text === '' && toolCalls.length > 0 ? null : text,
    refusal: null,
    ...(thinking === '' ? {} : { reasoning_content: thinking }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  }
  return {
    ...envelope(head, 'chat.completion'),
    choices: [{ index: 0, message, logprobs: null, finish_reason: FINISH_REASON[finishReason] }],
    usage: usageBody(usage),
  }
}

function envelope(head: AnswerHead, object: string): { readonly [key: string]: Json } {
  return { id: `chatcmpl-${head.answerId}`, object, created: head.createdS, model: head.model }
}

function toolCallBody(call: ToolCall): { readonly [key: string]: Json } {
  return { id: call.id, type: 'function', function: { name: call.name, arguments: call.argumentsText } }
}

function usageBody(usage: Usage): Json {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: { cached_tokens: usage.cachedTokens },
  }
}

/** Clients recognize a full context by the code, and some by the words "maximum context length". */
export function openAiFaultBody(fault: Fault): Json {
  const type = FAULT_STATUS[fault.kind] >= 500 ? 'server_error' : 'invalid_request_error'
  const code = fault.kind === 'overlong' ? 'context_length_exceeded' : fault.code
  return { error: { message: fault.message, type, param: null, code } }
}
