/** @file What the run loop may ask of the gateway. Role transfer happens here and nowhere else. */
import type { CallId, EngineId, ExecutionId } from '../core/ids.ts'
import type { CallRecord } from '../trajectory/node.ts'
import type { HarnessProfile } from '../trajectory/profile.ts'
import type { Engine } from './engine.ts'

export interface OpenExecution {
  readonly executionId: ExecutionId
  /** The harness profile (roles, canonicalisation), or the name of one we ship. */
  readonly profile: HarnessProfile | string
  readonly sampling: {
    readonly temperature: number
    readonly topP: number
    readonly topK: number
    readonly seed: number
    /** Upper bound for one call. [tokens] */
    readonly maxTokens: number
  }
  /** Model calls after which the gateway ends the execution's turn loop with a clear message. 0 for no limit. */
  readonly maxCalls: number
  /** Default: a random one. */
  readonly apiKey?: string
  /** The calls it has made, in commit order, when a gateway before this one served it. */
  readonly records?: readonly CallRecord[]
}

export interface ExecutionEndpoint {
  /** `http://127.0.0.1:PORT/x/EXECUTION` */
  readonly baseUrl: string
  readonly apiKey: string
}

export interface RouteChange {
  readonly executionId: ExecutionId
  /** undefined holds the execution's requests until a route comes. */
  readonly engineId: EngineId | undefined
  readonly routeEpoch: number
}

export interface ForwardingStats {
  readonly modelCalls: number
  readonly sampledTokens: number
  /** Calls that changed engine while they ran. */
  readonly requestsMoved: number
  /** Calls held at the moment. */
  readonly held: number
  /** Calls answered to a harness with an error of ours. */
  readonly harnessErrors: number
  /** Calls whose recorded path differs from the ids the engine saw. Always 0, or the run is wrong. */
  readonly tokensMismatched: number
}

export interface ExecutionSummary {
  readonly modelCalls: number
  readonly sampledTokens: number
  readonly harnessErrors: number
}

export interface ForwardingPoint {
  /** Engines may be added and replaced at any time; requests routed to a missing one are held. */
  setEngine(engine: Engine): void
  removeEngine(engineId: EngineId): void
  openExecution(spec: OpenExecution): ExecutionEndpoint
  /**
   * Applies all changes at once; a change with an older routeEpoch than the present one is ignored.
   * A generation running on an engine that is no longer its execution's route goes on there until
   * `cancelInFlight`, or moves at once when that engine is gone.
   */
  setRoutes(changes: readonly RouteChange[]): void
  /**
   * Cancels every generation running on the engine and returns when none is left. Each goes on at its
   * execution's present route from its partial tokens. Returns how many moved.
   */
  cancelInFlight(engineId: EngineId): Promise<number>
  /** Ends the execution's calls, waits for their records, and refuses further ones. Idempotent. */
  closeExecution(executionId: ExecutionId): Promise<ExecutionSummary>
  stats(): ForwardingStats
  close(): Promise<void>
}

/** Where the gateway writes; durable when the promise resolves. */
export interface RecordSink {
  appendCall(record: CallRecord): Promise<void>
  /** Marks answered calls whose answer was never used. */
  markOrphan(executionId: ExecutionId, callId: CallId): Promise<void>
}
