/** @file The administration of a gateway over HTTP, on an address of its own and with a token of its own. */
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'
import { errorText, GyreError } from '../../core/errors.ts'
import { HARNESS_PROFILE_NAMES } from '../../trajectory/profiles.ts'
import type { GatewayExecutions } from './gateway-executions.ts'
import { isSameSecret } from './gateway-secrets.ts'

export interface GatewayAdmin {
  /** Without a trailing slash. */
  readonly url: string
  close(): Promise<void>
}

export interface GatewayAdminOptions {
  readonly executions: GatewayExecutions
  readonly token: string
  readonly host: string
  /** 0 takes any free one. */
  readonly port: number
}

const MAX_BODY_BYTES = 64 * 1024
const requestSchema = z.strictObject({
  id: z.string().optional(),
  profile: z.enum(HARNESS_PROFILE_NAMES as [string, ...string[]]).optional(),
  sampling: z
    .strictObject({
      temperature: z.number().min(0).exactOptional(),
      topP: z.number().gt(0).max(1).exactOptional(),
      topK: z.int().min(0).exactOptional(),
      seed: z.int().exactOptional(),
      maxTokens: z.int().min(1).exactOptional(),
    })
    .optional(),
})

const STATUS: Readonly<Record<string, number>> = {
  E_GATEWAY_EXECUTION: 400,
  E_GATEWAY_ADMIN_REQUEST: 400,
  E_GATEWAY_UNAUTHORIZED: 401,
  E_GATEWAY_UNKNOWN_EXECUTION: 404,
  E_GATEWAY_UNKNOWN_ROUTE: 404,
  E_GATEWAY_METHOD: 405,
  E_GATEWAY_EXECUTION_EXISTS: 409,
  E_GATEWAY_BODY_TOO_LARGE: 413,
}

/** Starts to listen. @throws GyreError E_GATEWAY_PORT when the port cannot be had. */
export async function startGatewayAdmin(options: GatewayAdminOptions): Promise<GatewayAdmin> {
  const { host, port } = options
  const server = createServer((request, response) => {
    void answer(options, request, response)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      reject(refused('E_GATEWAY_PORT', `cannot listen on ${host}:${port}: free it, or choose another`, cause))
    })
    server.listen(port, host, resolve)
  })
  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}`,
    close: async () => {
      const closed = new Promise<void>((resolve) => {
        server.close(() => resolve())
      })
      server.closeAllConnections()
      await closed
    },
  }
}

async function answer(options: GatewayAdminOptions, request: IncomingMessage, response: ServerResponse): Promise<void> {
  try {
    const [status, body] = await handle(options, request)
    send(response, status, body)
  } catch (error) {
    const code = error instanceof GyreError ? error.code : 'E_GATEWAY_INTERNAL'
    send(response, STATUS[code] ?? 500, { error: { code, message: errorText(error) } })
  }
}

async function handle(
  { executions, token }: GatewayAdminOptions,
  request: IncomingMessage,
): Promise<readonly [number, unknown]> {
  const { method = 'GET', url = '/' } = request
  const [path = '/'] = url.split('?', 1)
  if (path === '/health') return [200, { status: 'ok' }]
  authorize(request, token)
  const [, id] = /^\/executions\/([^/]+)$/.exec(path) ?? []
  if (path === '/executions' && method === 'GET') return [200, { executions: executions.list() }]
  if (path === '/executions' && method === 'POST') return [201, executions.open(await readRequest(request))]
  if (id !== undefined && method === 'DELETE') return [200, await executions.close(decoded(id))]
  if (path === '/executions' || id !== undefined) {
    throw refused('E_GATEWAY_METHOD', `${path} does not take ${method}: GET or POST /executions, DELETE /executions/ID`)
  }
  throw refused('E_GATEWAY_UNKNOWN_ROUTE', `${path} is not served: there are /health, /executions and /executions/ID`)
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

function authorize(request: IncomingMessage, token: string): void {
  const given = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1]
  if (given !== undefined && isSameSecret(given, token)) return
  const what = given === undefined ? 'no token' : 'another token'
  throw refused(
    'E_GATEWAY_UNAUTHORIZED',
    `asked with ${what}: send the one of the token file as "Authorization: Bearer"`,
  )
}

async function readRequest(request: IncomingMessage): Promise<z.output<typeof requestSchema>> {
  const text = await readText(request)
  let value: unknown
  try {
    value = text.trim() === '' ? {} : JSON.parse(text)
  } catch (cause) {
    throw refused('E_GATEWAY_ADMIN_REQUEST', 'the body is not JSON', cause)
  }
  const parsed = requestSchema.safeParse(value)
  if (parsed.success) return parsed.data
  const problems = parsed.error.issues.map(
    (issue) => `${issue.path.map(String).join('.') || 'the body'}: ${issue.message}`,
  )
  throw refused('E_GATEWAY_ADMIN_REQUEST', problems.join('; '))
}

async function readText(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > MAX_BODY_BYTES) throw refused('E_GATEWAY_BODY_TOO_LARGE', `the body is over ${MAX_BODY_BYTES} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

function send(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' })
  response.end(JSON.stringify(body))
}

function refused(code: `E_GATEWAY_${Uppercase<string>}`, message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'gateway', code, cause })
}
