/** @file The cell protocol over HTTP: reads requests, asks the host, writes answers. */
import { timingSafeEqual } from 'node:crypto'
import { chmod, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { ZodType } from 'zod'
import { GyreError, errorText, hasCode } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import type { CellId } from '../core/ids.ts'
import type { CellEngine } from '../ports/cell.ts'
import { CellConnection } from './connection.ts'
import { Deadline } from './deadline.ts'
import { bytesOf } from './frame.ts'
import { decodeGenerate } from './generate-codec.ts'
import { CellHost } from './host.ts'
import type { Caller } from './host.ts'
import { decodeBlockRequest, encodeOffer } from './kv-codec.ts'
import { ConnectedKvPeer } from './kv-peer.ts'
import { streamBlocks } from './kv-stream.ts'
import {
  CONTENT,
  HEADER,
  MAX_BODY_BYTES,
  VERBS,
  applyHeldSchema,
  dropHeldSchema,
  fetchKvSchema,
  loadCheckpointSchema,
  optimizerSchema,
  pathOf,
  pinKvSchema,
  pinnedKvSchema,
  pullWeightsSchema,
  reduceGradientsSchema,
  saveCheckpointSchema,
  setPolicyVersionSchema,
} from './protocol.ts'
import type { Verb } from './protocol.ts'
import { realToJson } from './reals.ts'
import { streamGeneration } from './stream.ts'
import { decodeMicroStep, encodeMicroResult } from './training-codec.ts'
import { requestError, statusOf, toWireError } from './wire-errors.ts'

/** How long close() waits for cancelled generations. [ms] */
const CLOSE_MS = 2000

export interface ServeCellOptions {
  readonly engine: CellEngine
  readonly cellId: CellId
  /** Executions it is meant to serve at once. [executions] */
  readonly slots: number
  /** Path of the Unix socket to make, or host:port. Its folder must exist and be private. */
  readonly address: string
  /** Shared by the cells of one run and whoever commands them. */
  readonly token: string
  /** Receives one line for each failure that is a bug rather than an answer. */
  readonly log?: (line: string) => void
  /** Called when a call failed with E_ENGINE_CRASHED: the engine is beyond repair, the process should end. */
  readonly onCrash?: () => void
}

export interface CellServer {
  readonly address: string
  /** Cancels every generation, ends every connection, removes the socket. Leaves the engine to its owner. */
  close(): Promise<void>
}

interface Call extends Caller {
  readonly key: string | undefined
  readonly body: Buffer
}
interface Answer {
  readonly type: string
  readonly parts: readonly (Uint8Array | string)[]
  readonly headers?: Readonly<Record<string, string>>
}
/** Verbs that write their answer as it comes to be. */
type Streaming = 'generate' | 'kv-blocks'
type Handler = (call: Call) => Promise<Answer>

/** Serves an engine as a cell. Starts in mode `training`: it admits nothing until enterRollout. */
export async function serveCell(options: ServeCellOptions): Promise<CellServer> {
  const { address, token } = options
  const host = new CellHost({
    ...options,
    peers: {
      weights: (from, deadline) => withPeer(from, token, (peer) => peer.weights(deadline)),
      gradients: (from, deadline) => withPeer(from, token, (peer) => peer.gradients(deadline)),
      kv: (from) => new ConnectedKvPeer(from, token),
    },
  })
  const endpoint = new Endpoint(host, token, (error) => {
    if (!(error instanceof GyreError))
      options.log?.(error instanceof Error ? (error.stack ?? errorText(error)) : String(error))
    if (hasCode(error, 'E_ENGINE_CRASHED')) options.onCrash?.()
  })
  const server = createServer((request, response) => void endpoint.serve(request, response))
  // Callers own the deadlines; a cell never hangs up on a slow one.
  server.requestTimeout = 0
  server.keepAliveTimeout = 0
  const bound = await listen(server, address)
  return {
    address: bound,
    close: async () => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      await host.close(new Deadline('close', CLOSE_MS)).catch(() => undefined)
      server.closeAllConnections()
      await closed
      if (address.startsWith('/')) await rm(address, { force: true })
    },
  }
}

async function withPeer<T>(address: string, token: string, read: (peer: CellConnection) => Promise<T>): Promise<T> {
  const peer = new CellConnection(address, token)
  try {
    return await read(peer)
  } finally {
    await peer.close()
  }
}

/** @returns the address, with the real port when 0 was asked for. */
async function listen(server: Server, address: string): Promise<string> {
  const isPath = address.startsWith('/')
  if (isPath) await rm(address, { force: true })
  const [host, port] = [address.slice(0, address.lastIndexOf(':')), Number(address.slice(address.lastIndexOf(':') + 1))]
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      reject(
        new GyreError(`the cell cannot listen at ${address}: ${cause.message}`, {
          boundary: 'cell',
          code: 'E_CELL_LISTEN',
          cause,
        }),
      )
    })
    if (isPath) server.listen(address, resolve)
    else server.listen(port, host, resolve)
  })
  if (!isPath) return `${host}:${(server.address() as AddressInfo).port}`
  await chmod(address, 0o600)
  return address
}

class Endpoint {
  readonly #host: CellHost
  readonly #authorization: Buffer
  readonly #onFailure: (error: unknown) => void
  readonly #handlers: Readonly<Record<Exclude<Verb, Streaming>, Handler>>

  constructor(host: CellHost, token: string, onFailure: (error: unknown) => void) {
    this.#host = host
    this.#authorization = Buffer.from(`Bearer ${token}`)
    this.#onFailure = onFailure
    this.#handlers = handlersOf(host)
  }

  async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const verb = verbOf(request)
      if (verb !== 'health') this.#authorize(request)
      const call = await callOf(verb, request)
      if (verb === 'generate') await this.#generate(call, response)
      else if (verb === 'kv-blocks') await this.#kvBlocks(call, response)
      else writeAnswer(response, await this.#handlers[verb](call))
    } catch (error) {
      this.#refuse(response, error)
    }
  }

  async #generate(call: Call, response: ServerResponse): Promise<void> {
    const request = decodeGenerate(call.body, this.#host.engine.vocabSize)
    await streamGeneration(response, (signal) => this.#host.generate(call, request, signal), this.#onFailure)
  }

  async #kvBlocks(call: Call, response: ServerResponse): Promise<void> {
    const { serial, blocks } = decodeBlockRequest(call.body)
    const { kv } = this.#host.engine
    if (kv === undefined) throw requestError('this cell has no cached blocks to give')
    const read = (some: Int32Array): Promise<Float32Array> => kv.read(serial, some)
    await streamBlocks(response, blocks, kv.layout.blockFloats, read, call.deadline)
  }

  #authorize(request: IncomingMessage): void {
    const given = Buffer.from(request.headers.authorization ?? '')
    if (given.length === this.#authorization.length && timingSafeEqual(given, this.#authorization)) return
    throw new GyreError('the call carries no valid bearer token for this cell', {
      boundary: 'cell',
      code: 'E_CELL_UNAUTHORIZED',
    })
  }

  #refuse(response: ServerResponse, error: unknown): void {
    this.#onFailure(error)
    if (response.headersSent || response.destroyed) return
    const wire = toWireError(error)
    // A request whose body was not read to its end leaves the connection unusable for another.
    if (!response.req.complete) response.setHeader('connection', 'close')
    response.writeHead(statusOf(wire.code), { 'content-type': CONTENT.json })
    response.end(JSON.stringify({ error: wire }))
  }
}

/** @throws GyreError E_CELL_UNKNOWN_VERB, E_CELL_PROTOCOL_VERSION */
function verbOf(request: IncomingMessage): Verb {
  const path = request.url ?? ''
  const verb = path.slice(path.lastIndexOf('/') + 1) as Verb
  if (Object.hasOwn(VERBS, verb) && VERBS[verb].method === request.method) {
    if (path === pathOf(verb)) return verb
    if (/^\/v\d+\/[a-z-]+$/.test(path)) {
      throw new GyreError(`this cell speaks ${pathOf(verb)}, not ${path}`, {
        boundary: 'cell',
        code: 'E_CELL_PROTOCOL_VERSION',
      })
    }
  }
  throw new GyreError(`a cell has no verb ${request.method} ${path}`, {
    boundary: 'cell',
    code: 'E_CELL_UNKNOWN_VERB',
  })
}

/** @throws GyreError E_CELL_REQUEST, E_CELL_TOO_LARGE, E_CELL_TIMEOUT */
async function callOf(verb: Verb, request: IncomingMessage): Promise<Call> {
  const isHealth = verb === 'health'
  const limitMs = isHealth ? CLOSE_MS : integerHeader(request, HEADER.deadline)
  const deadline = new Deadline(verb, limitMs)
  const epoch = VERBS[verb].fenced ? integerHeader(request, HEADER.epoch) : 0
  const key = request.headers[HEADER.key]
  const body = VERBS[verb].method === 'POST' ? await deadline.wait(readBody(request), () => false) : Buffer.alloc(0)
  return { epoch, deadline, key: typeof key === 'string' ? key : undefined, body }
}

function integerHeader(request: IncomingMessage, name: string): number {
  const text = request.headers[name]
  if (typeof text === 'string' && /^\d{1,15}$/.test(text)) return Number(text)
  throw requestError(`the header ${name} must be a non-negative integer, and is ${JSON.stringify(text ?? null)}`)
}

async function readBody(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length
    if (length > MAX_BODY_BYTES) {
      throw new GyreError(`the request is larger than ${MAX_BODY_BYTES} bytes: send smaller micro-steps`, {
        boundary: 'cell',
        code: 'E_CELL_TOO_LARGE',
      })
    }
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function writeAnswer(response: ServerResponse, { type, parts, headers }: Answer): void {
  const length = parts.reduce((sum, part) => sum + Buffer.byteLength(part), 0)
  response.writeHead(200, { 'content-type': type, 'content-length': length, ...headers })
  for (const part of parts) response.write(part)
  response.end()
}

const json = (value: unknown): Answer => ({ type: CONTENT.json, parts: [JSON.stringify(value)] })

/** @throws GyreError E_CELL_REQUEST */
function parse<T>(schema: ZodType<T>, body: Buffer): T {
  let value: unknown
  try {
    value = JSON.parse(body.toString())
  } catch (cause) {
    throw requestError(`the body is not JSON: ${errorText(cause)}`)
  }
  const parsed = schema.safeParse(value)
  if (!parsed.success) throw requestError(`the body is not valid: ${parsed.error.message}`)
  return parsed.data
}

/** @throws GyreError E_CELL_REQUEST when the call has no idempotency key. */
function keyOf(call: Call): string {
  if (call.key !== undefined && call.key !== '') return call.key
  throw requestError(`this verb needs the header ${HEADER.key}`)
}

function handlersOf(host: CellHost): Readonly<Record<Exclude<Verb, Streaming>, Handler>> {
  return {
    health: async () => json(host.health()),
    hello: async () => json(host.hello()),
    weights: async () => {
      const { data, policyVersion } = await host.weights()
      return { type: CONTENT.raw, parts: [bytesOf(data)], headers: { [HEADER.policyVersion]: String(policyVersion) } }
    },
    gradients: async () => ({ type: CONTENT.raw, parts: [bytesOf(await host.gradients())] }),
    'enter-training': async (call) => done(host.enterTraining(call)),
    'enter-rollout': async (call) => done(host.enterRollout(call)),
    'pull-weights': async (call) => {
      const { from, policyVersion } = parse(pullWeightsSchema, call.body)
      return done(host.pullWeights(call, from, policyVersion))
    },
    'set-policy-version': async (call) =>
      done(host.setPolicyVersion(call, parse(setPolicyVersionSchema, call.body).policyVersion)),
    'zero-gradients': async (call) => done(host.zeroGradients(call)),
    'forward-backward': async (call) => {
      const step = decodeMicroStep(call.body, host.engine.vocabSize)
      const result = await host.forwardBackward(call, keyOf(call), call.body, step)
      return { type: CONTENT.frame, parts: encodeMicroResult(result) }
    },
    'hold-gradient': async (call) => {
      const step = decodeMicroStep(call.body, host.engine.vocabSize)
      const result = await host.holdGradient(call, keyOf(call), call.body, step)
      return { type: CONTENT.frame, parts: encodeMicroResult(result) }
    },
    'apply-held': async (call) => {
      const { held, scale } = parse(applyHeldSchema, call.body)
      return done(host.applyHeld(call, keyOf(call), call.body, held, scale))
    },
    'drop-held': async (call) => done(host.dropHeld(call, parse(dropHeldSchema, call.body).held)),
    'reduce-gradients': async (call) => done(host.reduceGradients(call, parse(reduceGradientsSchema, call.body).from)),
    'optimizer-step': async (call) => {
      const params = parse(optimizerSchema, call.body)
      const { gradientNorm } = await host.optimizerStep(call, keyOf(call), call.body, params)
      return json({ gradientNorm: realToJson(gradientNorm) })
    },
    'pin-kv': async (call) => {
      const { executionIds, ttlMs } = parse(pinKvSchema, call.body)
      return json({ pinned: await host.pinKv(call, executionIds.map(executionId), ttlMs) })
    },
    'fetch-kv': async (call) => {
      const { from, executionIds } = parse(fetchKvSchema, call.body)
      return json(await host.fetchKv(call, from, executionIds.map(executionId)))
    },
    'release-kv': async (call) => done(host.releaseKv(call)),
    'pinned-kv': async (call) => {
      const { executionIds } = parse(pinnedKvSchema, call.body)
      return { type: CONTENT.frame, parts: encodeOffer(host.kv.offer(executionIds.map(executionId))) }
    },
    'save-checkpoint': async (call) => done(host.saveCheckpoint(call, parse(saveCheckpointSchema, call.body).folder)),
    'load-checkpoint': async (call) => {
      const { folder, policyVersion } = parse(loadCheckpointSchema, call.body)
      return done(host.loadCheckpoint(call, folder, policyVersion))
    },
  }
}

async function done(work: Promise<void>): Promise<Answer> {
  await work
  return json({})
}
