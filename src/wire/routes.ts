/** @file Which dialect and which verb a path means. */
import { anthropic } from './anthropic.ts'
import type { Dialect, RequestTarget } from './dialect.ts'
import { openAiChat } from './openai-chat.ts'

export interface WireRoute {
  readonly dialect: Dialect
  readonly verb: 'generate' | 'count-tokens' | 'list-models'
  readonly target: RequestTarget
}

const GENERATE: Readonly<Record<string, Dialect>> = {
  '/v1/chat/completions': openAiChat,
  '/v1/messages': anthropic,
}

/** What clients see in errors when the path says nothing: by the path, else by a header only one dialect sends. */
export function dialectOf(path: string, headers: Readonly<Record<string, unknown>>): Dialect {
  return path.includes('/messages') || 'anthropic-version' in headers ? anthropic : openAiChat
}

/** @param path What follows the base URL, without the query. undefined when nothing is served there. */
export function wireRoute(path: string, headers: Readonly<Record<string, unknown>>): WireRoute | undefined {
  const dialect = GENERATE[path]
  if (dialect !== undefined) return { dialect, verb: 'generate', target: {} }
  if (path === '/v1/messages/count_tokens') return { dialect: anthropic, verb: 'count-tokens', target: {} }
  if (path === '/v1/models') return { dialect: dialectOf(path, headers), verb: 'list-models', target: {} }
  return undefined
}

/** Paths as an error names them. */
export const SERVED_PATHS = '/v1/messages, /v1/chat/completions or /v1/models'
