/** @file Is what a gateway answered a whole answer, or an error, in the shape of a dialect? */
import type { DialectOfSample } from './wire-samples.ts'

export interface WireAnswer {
  readonly status: number
  readonly contentType: string
  readonly text: string
}

type Fields = Readonly<Record<string, unknown>>

/** @returns What is wrong with an answer of status 200, or undefined. */
export function faultInAnswer(dialect: DialectOfSample, answer: WireAnswer): string | undefined {
  const isStream = answer.contentType.startsWith('text/event-stream')
  if (!isStream) return isWhole[dialect](parsed(answer.text)) ? undefined : `not a body of ${dialect}`
  if (!answer.text.endsWith('\n\n')) return 'the last frame is cut'
  const frames = answer.text.slice(0, -2).split('\n\n')
  const data = frames.map((frame) => /^data: (.*)$/m.exec(frame)?.[1])
  return isStreamed[dialect](data) ? undefined : `not a stream of ${dialect}`
}

/** @returns What is wrong with an answer of another status, or undefined. */
export function faultInError(dialect: DialectOfSample, { status, text }: WireAnswer): string | undefined {
  const { type, error } = parsed(text)
  const { type: errorType, message, code, status: name } = fields(error)
  if (typeof message !== 'string' || message === '') return 'an error without a message'
  const isShaped = {
    anthropic: type === 'error' && isText(errorType) && code === undefined,
    gemini: code === status && isText(name) && /^[A-Z_]+$/.test(name),
    'openai-chat': isText(errorType) && isText(code),
    'openai-responses': isText(errorType) && isText(code),
  }
  return isShaped[dialect] ? undefined : `not an error of ${dialect}`
}

const isWhole: Readonly<Record<DialectOfSample, (body: Fields) => boolean>> = {
  anthropic: (body) =>
    (body['type'] === 'message' && Array.isArray(body['content']) && isText(body['stop_reason'])) ||
    typeof body['input_tokens'] === 'number',
  'openai-chat': (body) => isText(fields(first(body['choices']))['finish_reason']),
  'openai-responses': (body) => body['object'] === 'response' && Array.isArray(body['output']),
  gemini: (body) =>
    isText(fields(first(body['candidates']))['finishReason']) || typeof body['totalTokens'] === 'number',
}

/** A stream is whole when its first and its last frame are those of the dialect, and none of them is an error. */
const isStreamed: Readonly<Record<DialectOfSample, (data: readonly (string | undefined)[]) => boolean>> = {
  anthropic: (data) => typesOf(data).at(0) === 'message_start' && typesOf(data).at(-1) === 'message_stop',
  'openai-chat': (data) => data.at(-1) === '[DONE]' && data.slice(0, -1).every((text) => 'choices' in parsed(text)),
  'openai-responses': (data) =>
    typesOf(data).at(0) === 'response.created' && /^response\.(completed|incomplete)$/.test(typesOf(data).at(-1) ?? ''),
  gemini: (data) =>
    data.every((text) => 'candidates' in parsed(text)) &&
    isText(fields(first(parsed(data.at(-1))['candidates']))['finishReason']),
}

function typesOf(data: readonly (string | undefined)[]): readonly string[] {
  return data.map((text) => String(parsed(text)['type']))
}

function parsed(text: string | undefined): Fields {
  try {
    return fields(JSON.parse(text ?? '') as unknown)
  } catch {
    return {}
  }
}

function fields(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {}
}

function first(value: unknown): unknown {
  return Array.isArray(value) ? value[0] : undefined
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== ''
}
