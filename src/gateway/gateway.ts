/** @file The forwarding point: executions, routes and engines meet here, and nowhere else. */
import type { AddressInfo } from 'node:net'
import type { Server } from 'node:http'
import { invariant } from '../core/errors.ts'
import type { EngineId, ExecutionId } from '../core/ids.ts'
import type { Engine } from '../ports/engine.ts'
import type {
  ExecutionEndpoint,
  ExecutionSummary,
  ForwardingPoint,
  ForwardingStats,
  OpenExecution,
  RecordSink,
  RouteChange,
} from '../ports/forwarding.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import { BlockEncoder } from './block-encoder.ts'
import { Execution, zeroCounters } from './execution.ts'
import type { Counters } from './execution.ts'
import { gatewayError } from './faults.ts'
import { RouteTable } from './routes.ts'
import { Sampler } from './sampler.ts'
import { createGatewayServer } from './server.ts'
import { ExchangeTaps } from './taps.ts'
import type { TapListeners } from './taps.ts'

interface GatewayLimits {
  /** Largest request body. [bytes] */
  readonly bodyBytes: number
  /** Silence after which a waiting client gets a keep-alive frame. [ms] */
  readonly keepAliveMs: number
  /** How long a call whose client hung up runs on, in case the client comes back. [ms] */
  readonly abandonMs: number
  /** How long after its answer the same request counts as a retry. [ms] */
  readonly replayMs: number
  /** How long a request waits to see whether the client that asked the same has hung up. [ms] */
  readonly hangUpMs: number
  /** Longest pause between two tries on an engine that keeps failing. [ms] */
  readonly retryPauseMs: number
  /** How long an engine may take to stop a cancelled generation. [ms] */
  readonly cancelMs: number
}

const DEFAULT_LIMITS: GatewayLimits = {
  bodyBytes: 256 * 1024 * 1024,
  keepAliveMs: 15_000,
  abandonMs: 5000,
  replayMs: 60_000,
  hangUpMs: 250,
  retryPauseMs: 500,
  cancelMs: 10_000,
}

export interface GatewayDeps extends TapListeners {
  readonly codec: ChatCodec
  readonly sink: RecordSink
  /** Name of the policy, as `/v1/models` and answers to nameless requests give it. */
  readonly model: string
  /** What every engine accepts. [tokens] */
  readonly maxContext: number
  /** Defaults to loopback. */
  readonly host?: string
  /** Defaults to any free port. */
  readonly port?: number
  readonly limits?: Partial<GatewayLimits>
  /** Told of every failure of ours; the execution is undefined when none was asked yet. */
  readonly onFailure?: (error: unknown, executionId: ExecutionId | undefined) => void
  /** ms since the Unix epoch. */
  readonly now?: () => number
}

export interface Gateway extends ForwardingPoint {
  readonly port: number
  /** Without a trailing slash. */
  readonly url: string
}

/** Starts to listen. @throws GyreError E_GATEWAY_PORT when the port cannot be had. */
export async function createGateway(deps: GatewayDeps): Promise<Gateway> {
  const limits = { ...DEFAULT_LIMITS, ...deps.limits }
  const routes = new RouteTable()
  const sampler = new Sampler(routes, limits)
  const executions = new Map<string, Execution>()
  const { codec, sink, model, maxContext, now = monotonicNow, host = '127.0.0.1' } = deps
  const server = createGatewayServer({
    ...limits,
    codec,
    encoder: new BlockEncoder(codec),
    sink,
    model,
    maxContext,
    now,
    sampler,
    taps: new ExchangeTaps(deps),
    findExecution: (executionId) => executions.get(executionId),
    onFailure: (error, execution) => deps.onFailure?.(error, execution?.spec.executionId),
  })
  const port = await listen(server, host, deps.port ?? 0)
  return new ListeningGateway(server, { routes, sampler, executions, sink }, `http://${host}:${port}`, port)
}

interface GatewayParts {
  readonly routes: RouteTable
  readonly sampler: Sampler
  readonly executions: Map<string, Execution>
  readonly sink: RecordSink
}

class ListeningGateway implements Gateway {
  readonly url: string
  readonly port: number
  readonly #server: Server
  readonly #parts: GatewayParts
  readonly #closing = new Map<ExecutionId, Promise<ExecutionSummary>>()

  constructor(server: Server, parts: GatewayParts, url: string, port: number) {
    this.#server = server
    this.#parts = parts
    this.url = url
    this.port = port
  }

  setEngine(engine: Engine): void {
    this.#parts.routes.setEngine(engine)
  }

  removeEngine(engineId: EngineId): void {
    this.#parts.routes.removeEngine(engineId)
    void this.#parts.sampler.cancel(engineId)
  }

  openExecution(spec: OpenExecution): ExecutionEndpoint {
    const { executionId } = spec
    invariant(!this.#parts.executions.has(executionId), `execution ${executionId} is opened once`)
    const execution = new Execution(spec)
    this.#parts.executions.set(executionId, execution)
    return { baseUrl: `${this.url}/x/${encodeURIComponent(executionId)}`, apiKey: execution.apiKey }
  }

  setRoutes(changes: readonly RouteChange[]): void {
    this.#parts.routes.apply(changes)
  }

  async cancelInFlight(engineId: EngineId): Promise<number> {
    return this.#parts.sampler.cancel(engineId)
  }

  async closeExecution(executionId: ExecutionId): Promise<ExecutionSummary> {
    const started = this.#closing.get(executionId) ?? this.#close(executionId)
    this.#closing.set(executionId, started)
    return started
  }

  stats(): ForwardingStats {
    const totals = zeroCounters()
    for (const { counters } of this.#parts.executions.values()) {
      for (const name of Object.keys(totals) as (keyof Counters)[]) totals[name] += counters[name]
    }
    return { ...totals, held: this.#parts.sampler.held }
  }

  async close(): Promise<void> {
    const open = [...this.#parts.executions.values()].map(({ spec }) => spec.executionId)
    await Promise.all(open.map(async (executionId) => this.closeExecution(executionId)))
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve())
    })
    this.#server.closeAllConnections()
    await closed
  }

  async #close(executionId: ExecutionId): Promise<ExecutionSummary> {
    const execution = this.#parts.executions.get(executionId)
    if (execution === undefined) return { modelCalls: 0, sampledTokens: 0, harnessErrors: 0 }
    const orphans = await execution.close()
    for (const orphan of orphans) await this.#parts.sink.markOrphan(executionId, orphan)
    this.#parts.routes.forget(executionId)
    const { modelCalls, sampledTokens, harnessErrors } = execution.counters
    return { modelCalls, sampledTokens, harnessErrors }
  }
}

/** Setting the wall clock makes no answer too old to be asked for again. */
function monotonicNow(): number {
  return Math.round(performance.timeOrigin + performance.now())
}

async function listen(server: Server, host: string, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => {
      const text = `cannot listen on ${host}:${port}: free it, or choose another gateway port (0 takes any)`
      reject(gatewayError('E_GATEWAY_PORT', text, error))
    })
    server.listen(port, host, resolve)
  })
  return (server.address() as AddressInfo).port
}
