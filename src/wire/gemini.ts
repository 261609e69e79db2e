/** @file Gemini's generateContent: answers and errors. Requests are in gemini-request.ts. */
import type { FinishReason, Json, Usage } from '../core/items.ts'
import { argumentsOf, joinedParts } from './answer-parts.ts'
import { FAULT_STATUS } from './dialect.ts'
import type { AnswerHead, AnswerPart, AnswerStream, Dialect, Fault, FaultKind } from './dialect.ts'
import { parseGeminiContent, parseGeminiEnvelope } from './gemini-request.ts'
import { sseFrame } from './sse.ts'

const FINISH_REASON: Readonly<Record<FinishReason, string>> = {
  stop: 'STOP',
  'tool-calls': 'STOP',
  length: 'MAX_TOKENS',
}

const ERROR_STATUS: Readonly<Record<FaultKind, string>> = {
  malformed: 'INVALID_ARGUMENT',
  unsupported: 'INVALID_ARGUMENT',
  overlong: 'INVALID_ARGUMENT',
  unauthorized: 'UNAUTHENTICATED',
  'not-found': 'NOT_FOUND',
  method: 'UNIMPLEMENTED',
  'too-large': 'INVALID_ARGUMENT',
  'call-limit': 'PERMISSION_DENIED',
  gone: 'FAILED_PRECONDITION',
  internal: 'INTERNAL',
}

/** A content without any part makes Google's own client forget the whole turn; an empty text is dropped by all. */
const SILENCE: readonly Json[] = [{ text: '' }]

export const gemini: Dialect = {
  name: 'gemini',
  conversation: 'contents',
  // Google's client keeps every frame of a stream as a content of its own.
  splitsTurns: true,
  parseEnvelope: parseGeminiEnvelope,
  parseElement: parseGeminiContent,
  answerStream: (head) => new ResponseStream(head),
  answerBody: (head, parts, finishReason, usage) =>
    response(head, joinedParts(parts).map(partBody), finishReason, usage),
  countBody: (promptTokens) => ({ totalTokens: promptTokens }),
  modelsBody: (model) => ({ models: [geminiModelBody(model)] }),
  faultBody,
}

/** One model by itself. */
export function geminiModelBody(model: string): Json {
  const supportedGenerationMethods = ['generateContent', 'countTokens']
  return { name: `models/${model}`, version: '1', displayName: model, supportedGenerationMethods }
}

/** There is no opening frame: the first one a client sees already says something. */
class ResponseStream implements AnswerStream {
  readonly #head: AnswerHead

  constructor(head: AnswerHead) {
    this.#head = head
  }

  open(): string {
    return ''
  }

  part(part: AnswerPart): string {
    return frame(response(this.#head, [partBody(part)]))
  }

  keepAlive(): string {
    return frame(response(this.#head, SILENCE))
  }

  close(finishReason: FinishReason, usage: Usage): string {
    return frame(response(this.#head, SILENCE, finishReason, usage))
  }

  fail(fault: Fault): string {
    return frame(faultBody(fault))
  }
}

function response(head: AnswerHead, parts: readonly Json[], finishReason?: FinishReason, usage?: Usage): Json {
  const content = { role: 'model', parts: parts.length === 0 ? SILENCE : parts }
  const end = finishReason === undefined ? {} : { finishReason: FINISH_REASON[finishReason] }
  return {
    candidates: [{ content, ...end, index: 0 }],
    ...(usage === undefined ? {} : { usageMetadata: usageBody(usage) }),
    modelVersion: head.model,
    responseId: head.answerId,
  }
}

function partBody(part: AnswerPart): Json {
  if (part.kind === 'text') return { text: part.text }
  if (part.kind === 'thinking') return { text: part.text, thought: true }
  return { functionCall: { id: part.call.id, name: part.call.name, args: argumentsOf(part.call) } }
}

function usageBody(usage: Usage): Json {
  return {
    promptTokenCount: usage.promptTokens,
    ...(usage.cachedTokens === 0 ? {} : { cachedContentTokenCount: usage.cachedTokens }),
    candidatesTokenCount: usage.completionTokens,
    totalTokenCount: usage.promptTokens + usage.completionTokens,
  }
}

function faultBody(fault: Fault): Json {
  return { error: { code: FAULT_STATUS[fault.kind], message: fault.message, status: ERROR_STATUS[fault.kind] } }
}

function frame(body: Json): string {
  return sseFrame(JSON.stringify(body))
}
