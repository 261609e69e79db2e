/** @file What the engine servers of the tests share: a real socket, streams that can be cut anywhere, and faults. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { ToyScript, ToyWeights } from './toy-model.ts'

/** What goes wrong in one generation; counted in tokens that were sent before. */
export type Fault =
  | { readonly kind: 'status'; readonly status: number; readonly body: unknown }
  | { readonly kind: 'die' | 'stall' | 'abort' | 'error-event'; readonly afterTokens: number }
  | { readonly kind: 'duplicate' | 'lose' | 'sentinel'; readonly atToken: number }
  | { readonly kind: 'no-done' | 'late-frame' | 'garbage' }

export interface BaseOptions {
  /** Pause before each piece of a stream. Default 0. [ms] */
  readonly pieceDelayMs?: number
  /** Cuts what is written into the pieces that the client's socket reads. Default: whole. */
  readonly cut?: (bytes: Buffer) => readonly Buffer[]
  /** The fault of the n-th generation, counted from 0 after `forgetCalls`. */
  readonly fault?: (call: number) => Fault | undefined
  readonly script?: ToyScript
  /** Its model, where it is one that is read from disk. */
  readonly weights?: ToyWeights
  /** Loads a folder of weights. @throws Error what it says of a folder it cannot load. */
  readonly load?: (folder: string) => void
  /** Answers 401 to any other. */
  readonly apiKey?: string
}

export interface SeenCall {
  readonly path: string
  readonly headers: Readonly<IncomingMessage['headers']>
  readonly body: Record<string, unknown>
}

export type Route = (body: Record<string, unknown>, response: ServerResponse) => void | Promise<void>

/** An HTTP server whose routes are set by its kind. */
export class BaseServer {
  readonly calls: SeenCall[] = []
  /** Ids the client asked to abort. */
  readonly aborted: string[] = []
  readonly options: BaseOptions
  readonly #routes: Readonly<Record<string, Route>>
  readonly #sockets = new Set<Socket>()
  readonly #server = createServer((request, response) => void this.#serve(request, response))
  #running = 0
  #generations = 0
  connections = 0
  /** What it calls its weights, once somebody named them. */
  label: string | undefined

  constructor(options: BaseOptions, routes: (server: BaseServer) => Readonly<Record<string, Route>>) {
    this.options = options
    this.#routes = routes(this)
    this.#server.on('connection', (socket) => {
      this.connections++
      this.#sockets.add(socket)
      socket.setNoDelay(true)
      socket.on('close', () => this.#sockets.delete(socket))
    })
  }

  get paths(): readonly string[] {
    return Object.keys(this.#routes)
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  /** Generations under way. */
  running(): number {
    return this.#running
  }

  async listen(): Promise<this> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return this
  }

  /** As a killed process: every socket is reset and nobody listens. */
  async kill(): Promise<void> {
    const closed = once(this.#server, 'close')
    this.#server.close()
    for (const socket of this.#sockets) socket.resetAndDestroy()
    await closed
  }

  async close(): Promise<void> {
    if (this.#server.listening) await this.kill()
  }

  /** Counts generations, so that faults fall on the calls of the test and not on those of the start-up checks. */
  forgetCalls(): void {
    this.#generations = 0
    this.calls.length = 0
  }

  nextFault(): Fault | undefined {
    return this.options.fault?.(this.#generations++)
  }

  /** Runs one generation and counts it as under way. */
  async generating(run: () => Promise<void>): Promise<void> {
    this.#running++
    try {
      await run()
    } finally {
      this.#running--
    }
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    const text = Buffer.concat(parts).toString()
    const body = text === '' ? {} : (JSON.parse(text) as Record<string, unknown>)
    const path = (request.url ?? '').replace(/\?.*/, '')
    this.calls.push({ path, headers: request.headers, body })
    const key = request.headers.authorization?.replace('Bearer ', '') ?? request.headers['x-api-key']
    if (this.options.apiKey !== undefined && key !== this.options.apiKey) {
      json(response, 401, { error: 'Unauthorized' })
      return
    }
    const route = this.#routes[path]
    if (path === '/openapi.json') json(response, 200, { paths: Object.fromEntries(this.paths.map((p) => [p, {}])) })
    else if (route === undefined) json(response, 404, { detail: 'Not Found' })
    else await route(body, response)
  }
}

export function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(typeof body === 'string' ? body : JSON.stringify(body))
}

/** A stream of server-sent events that the client may leave. */
export class EventStream {
  readonly #response: ServerResponse
  readonly #options: BaseOptions

  constructor(response: ServerResponse, options: BaseOptions) {
    this.#response = response
    this.#options = options
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.flushHeaders()
  }

  get isLeft(): boolean {
    return this.#response.destroyed || this.#response.writableEnded
  }

  /** Writes bytes in the pieces they are cut into; false when the client has left. */
  async write(text: string): Promise<boolean> {
    const bytes = Buffer.from(text)
    for (const piece of this.#options.cut?.(bytes) ?? [bytes]) {
      await pause(this.#options.pieceDelayMs ?? 0)
      if (this.isLeft) return false
      this.#response.write(piece)
    }
    return true
  }

  /** Waits until the client leaves. */
  async untilLeft(): Promise<void> {
    if (!this.isLeft) await once(this.#response, 'close')
  }

  die(): void {
    this.#response.socket?.resetAndDestroy()
  }

  end(): void {
    this.#response.end()
  }
}

export async function pause(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    if (ms > 0) setTimeout(resolve, ms)
    else setImmediate(resolve)
  })
}
