/** @file Which dialect and which verb a path means. */
import { anthropic } from './anthropic.ts'
import type { Dialect, RequestTarget } from './dialect.ts'
import { geminiCountedRequest } from './gemini-request.ts'
import { gemini, geminiModelBody } from './gemini.ts'
import { openAiChat } from './openai-chat.ts'
import { openAiResponses } from './openai-responses.ts'
import { unsupported } from './validate.ts'

export interface WireRoute {
  readonly dialect: Dialect
  readonly verb: 'generate' | 'count-tokens' | 'list-models'
  readonly target: RequestTarget
  /** Finds the request in a body that holds it as a field. @throws GyreError E_WIRE_MALFORMED. */
  readonly requestIn?: (body: unknown) => unknown
}

type Headers = Readonly<Record<string, unknown>>

const GENERATE: Readonly<Record<string, Dialect>> = {
  '/v1/chat/completions': openAiChat,
  '/v1/messages': anthropic,
  '/v1/responses': openAiResponses,
  // A base URL without the version is common for this dialect.
  '/responses': openAiResponses,
}
const COUNT_TOKENS: Readonly<Record<string, Dialect>> = {
  '/v1/messages/count_tokens': anthropic,
  '/v1/responses/input_tokens': openAiResponses,
  '/responses/input_tokens': openAiResponses,
}

/** Gemini names the model and the verb in the path. */
const GEMINI_PATH = /^\/v1(?:beta|alpha)?\/models\/(.+?)(?::([a-zA-Z]+))?$/
const GEMINI_ONLY = /^\/(x\/[^/]+\/)?v1(beta|alpha)\/|:[a-z]+(Content|Tokens)$/i
/** The same dialect where one model is asked for. */
const geminiModel: Dialect = { ...gemini, modelsBody: geminiModelBody }

/** What clients see in errors when the path says nothing: by the path, else by a header only one dialect sends. */
export function dialectOf(path: string, headers: Headers): Dialect {
  if (GEMINI_ONLY.test(path)) return gemini
  if (path.includes('/messages') || 'anthropic-version' in headers) return anthropic
  return 'x-goog-api-key' in headers && path.endsWith('/models') ? gemini : openAiChat
}

/**
 * @param path What follows the base URL, without the query.
 * @param query What follows the question mark.
 * @returns undefined when nothing is served there.
 * @throws GyreError E_WIRE_UNSUPPORTED for a way of answering that is not served.
 */
export function wireRoute(path: string, headers: Headers, query: string): WireRoute | undefined {
  const dialect = GENERATE[path]
  if (dialect !== undefined) return { dialect, verb: 'generate', target: {} }
  const counted = COUNT_TOKENS[path]
  if (counted !== undefined) return { dialect: counted, verb: 'count-tokens', target: {} }
  if (path === '/v1/models') return { dialect: dialectOf(path, headers), verb: 'list-models', target: {} }
  if (path === '/v1beta/models') return { dialect: gemini, verb: 'list-models', target: {} }
  return geminiRoute(path, query)
}

function geminiRoute(path: string, query: string): WireRoute | undefined {
  const [, name, verb] = GEMINI_PATH.exec(path) ?? []
  if (name === undefined) return undefined
  const model = decoded(name)
  switch (verb) {
    case 'generateContent':
      return { dialect: gemini, verb: 'generate', target: { model, stream: false } }
    case 'streamGenerateContent':
      if (!asksForEvents(query)) throw unsupported(path, 'a stream as one JSON list (ask for events with "?alt=sse")')
      return { dialect: gemini, verb: 'generate', target: { model, stream: true } }
    case 'countTokens':
      return { dialect: gemini, verb: 'count-tokens', target: { model }, requestIn: geminiCountedRequest }
    case undefined:
      return GEMINI_ONLY.test(path) ? { dialect: geminiModel, verb: 'list-models', target: { model } } : undefined
    default:
      return undefined
  }
}

function asksForEvents(query: string): boolean {
  const values = new URLSearchParams(query)
  return (values.get('alt') ?? values.get('$alt')) === 'sse'
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name)
  } catch {
    return name
  }
}

/** Paths as an error names them. */
export const SERVED_PATHS =
  '/v1/messages, /v1/chat/completions, /v1/responses, /v1beta/models/MODEL:generateContent, :streamGenerateContent, or /v1/models'
