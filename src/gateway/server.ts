/** @file The HTTP side of the gateway: which execution asks, with which key, in which dialect. */
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Dialect } from '../wire/dialect.ts'
import { dialectOf, SERVED_PATHS, wireRoute } from '../wire/routes.ts'
import type { WireRoute } from '../wire/routes.ts'
import { parseJson, readBody } from './body.ts'
import type { Conversation } from './conversation.ts'
import type { Execution } from './execution.ts'
import { faultOf, gatewayError } from './faults.ts'
import { forward, identify } from './forward.ts'
import type { ForwardDeps } from './forward.ts'
import { planPrompt } from './prompt.ts'
import { respond, sendFault, sendJson } from './respond.ts'
import type { ExchangeTaps, OpenExchange } from './taps.ts'

/** Keep-alives in the silence a harness stands: one may be late, or lost. */
const SILENCE_PARTS = 4
/** Idle connections are kept longer than any client keeps them, so that no request meets a closing socket. [ms] */
const KEEP_ALIVE_TIMEOUT_MS = 15 * 60_000

export interface ServerDeps extends ForwardDeps {
  readonly taps: ExchangeTaps
  readonly model: string
  readonly bodyBytes: number
  readonly keepAliveMs: number
  readonly findExecution: (executionId: string) => Execution | undefined
}

interface Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly method: string
  /** What follows `/x/EXECUTION`, without the query. */
  readonly path: string
  readonly route: WireRoute
  readonly tapped: OpenExchange | undefined
}

/** Does not listen yet. No timeout of the server's own may cut a call. */
export function createGatewayServer(deps: ServerDeps): Server {
  const server = createServer({ requestTimeout: 0, keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS }, (request, response) => {
    void answer(deps, request, response)
  })
  server.timeout = 0
  return server
}

async function answer(deps: ServerDeps, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { url = '/', method = 'GET', headers } = request
  const [pathname = '/', query = ''] = url.split('?', 2)
  try {
    if (pathname === '/health') return sendJson(response, 200, { status: 'ok' })
    if (method === 'HEAD') return endEmpty(response)
    const [, executionId, path] = /^\/x\/([^/]+)(\/.*)$/.exec(pathname) ?? []
    if (executionId === undefined || path === undefined) throw unknownRoute(method, pathname)
    const execution = authorize(deps, decoded(executionId), request, query)
    const route = wireRoute(path, headers, query)
    if (route === undefined) throw unknownRoute(method, path)
    const tapped = route.verb === 'generate' ? deps.taps.open(execution, url, request, response, deps.now) : undefined
    await dispatch(deps, execution, { request, response, method, path, route, tapped })
  } catch (error) {
    refuse(deps, request, response, dialectOf(pathname, headers), error)
  }
}

async function dispatch(deps: ServerDeps, execution: Execution, exchange: Exchange): Promise<void> {
  const { response, route } = exchange
  const { dialect, verb } = route
  if (verb === 'generate') return complete(deps, execution, exchange)
  if (verb === 'list-models') {
    return sendJson(response, 200, dialect.modelsBody(deps.model, Math.floor(deps.now() / 1000)))
  }
  const conversation = await readPosted(deps, execution, exchange, (body) =>
    countedConversation(execution, route, body),
  )
  const prompt = planPrompt(execution.tree, deps.encoder, conversation)
  return sendJson(response, 200, dialect.countBody(prompt.tokenIds.length))
}

/** Gemini wraps the request to count; the others send it as it is, so that counting before a call makes it cheap. */
function countedConversation(
  execution: Execution,
  { dialect, target, requestIn }: WireRoute,
  body: Buffer,
): Conversation {
  if (requestIn === undefined) return execution.bodies.read(body, dialect, target)
  const posted = parseJson(body)
  return execution.bodies.readWhole(dialect, requestIn(posted) ?? posted, target)
}

async function complete(deps: ServerDeps, execution: Execution, exchange: Exchange): Promise<void> {
  const { request, response, route, tapped } = exchange
  const { dialect, target } = route
  const conversation = await readPosted(deps, execution, exchange, (body) => {
    if (tapped !== undefined) tapped.body = parseJson(body)
    return execution.bodies.read(body, dialect, target)
  })
  const asked = await identify(deps, execution, conversation, request.headers)
  const call = forward(deps, execution, dialect, conversation, asked)
  const { envelope } = conversation
  if (tapped !== undefined) tapped.call = call
  const head = {
    answerId: call.facts.callId,
    model: envelope.model === '' ? deps.model : envelope.model,
    createdS: Math.floor(call.facts.startedAtMs / 1000),
    promptTokens: call.facts.promptTokens,
    maxTokens: envelope.maxTokens,
    includeUsage: envelope.includeUsage,
    tools: call.facts.tools,
  }
  const keepAliveMs = Math.min(deps.keepAliveMs, execution.silenceLimitMs / SILENCE_PARTS)
  await respond(response, call, dialect, head, envelope.stream, keepAliveMs)
}

async function readPosted<T>(
  deps: ServerDeps,
  execution: Execution,
  exchange: Exchange,
  use: (body: Buffer) => T,
): Promise<T> {
  const { request, method, path } = exchange
  if (method !== 'POST') throw gatewayError('E_GATEWAY_METHOD', `${path} takes POST, not ${method}`)
  execution.assertOpen()
  return readBody(request, deps.bodyBytes, use)
}

/** The key of one execution opens nothing of another. */
function authorize(deps: ServerDeps, executionId: string, request: IncomingMessage, query: string): Execution {
  const execution = deps.findExecution(executionId)
  if (execution === undefined) {
    throw gatewayError('E_GATEWAY_UNKNOWN_EXECUTION', `there is no execution "${executionId}": check the base URL`)
  }
  const bearer = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1]
  const { 'x-api-key': anthropicKey, 'x-goog-api-key': geminiKey } = request.headers
  const queryKey = new URLSearchParams(query).get('key')
  const keys = [bearer, anthropicKey, geminiKey, queryKey].filter((key) => typeof key === 'string')
  if (keys.some((key) => execution.isKey(key))) return execution
  const what = keys.length === 0 ? 'no key' : 'another key'
  throw gatewayError(
    'E_GATEWAY_UNAUTHORIZED',
    `execution "${executionId}" was asked with ${what}: send its own as "Authorization: Bearer", "x-api-key" or "x-goog-api-key"`,
  )
}

/** Some harnesses knock once before they ask. */
function endEmpty(response: ServerResponse): void {
  response.writeHead(200).end()
}

/** A client that left has nobody to tell, and nothing of ours went wrong. */
function refuse(
  deps: ServerDeps,
  request: IncomingMessage,
  response: ServerResponse,
  dialect: Dialect,
  error: unknown,
): void {
  if (response.destroyed || request.socket.destroyed) return
  const fault = faultOf(error)
  if (fault.code === 'E_GATEWAY_INTERNAL') deps.onFailure(error, undefined)
  if (response.headersSent) response.destroy()
  else sendFault(response, dialect, fault)
}

function unknownRoute(method: string, path: string): Error {
  return gatewayError(
    'E_GATEWAY_UNKNOWN_ROUTE',
    `${method} ${path} is not served: below /x/EXECUTION use ${SERVED_PATHS}`,
  )
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}
