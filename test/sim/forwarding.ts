/** @file The real routing of the gateway, the sampler and its route table, with no HTTP around it. */
import type { EngineId, ExecutionId } from '../../src/core/ids.ts'
import { errorText, hasCode } from '../../src/core/errors.ts'
import { RouteTable } from '../../src/gateway/routes.ts'
import { Sampler } from '../../src/gateway/sampler.ts'
import type { Sampled } from '../../src/gateway/sampler.ts'
import type { Engine } from '../../src/ports/engine.ts'
import type {
  ExecutionEndpoint,
  ExecutionSummary,
  ForwardingPoint,
  ForwardingStats,
  OpenExecution,
  RouteChange,
} from '../../src/ports/forwarding.ts'
import type { Surroundings } from './machines.ts'
import { STOP, tokenAt } from './policy.ts'

interface Open {
  readonly ended: AbortController
  readonly running: Set<Promise<unknown>>
  modelCalls: number
  sampledTokens: number
}

/** What every call of a run has to look like. */
export interface CallWatch {
  answered(executionId: ExecutionId, sampled: Sampled): void
  /** An error of ours that a harness saw. */
  failed(executionId: ExecutionId, error: unknown): void
  /** How many executions a destination may own, and which own a slot at all. */
  routed(routes: ReadonlyMap<ExecutionId, EngineId | undefined>): void
}

export class SimForwarding implements ForwardingPoint {
  readonly #routes = new RouteTable()
  readonly #sampler = new Sampler(this.#routes, { retryPauseMs: 200, cancelMs: 400 })
  readonly #open = new Map<ExecutionId, Open>()
  /** A copy of the table, to look at. */
  readonly #table = new Map<ExecutionId, EngineId | undefined>()
  readonly #around: Surroundings
  readonly #watch: CallWatch
  #moved = 0

  constructor(around: Surroundings, watch: CallWatch) {
    this.#around = around
    this.#watch = watch
  }

  setEngine(engine: Engine): void {
    this.#routes.setEngine(engine)
  }

  removeEngine(engineId: EngineId): void {
    this.#routes.removeEngine(engineId)
    void this.#sampler.cancel(engineId)
  }

  openExecution({ executionId }: OpenExecution): ExecutionEndpoint {
    if (this.#open.has(executionId)) this.#around.accuse(`${executionId} is opened twice`)
    this.#open.set(executionId, { ended: new AbortController(), running: new Set(), modelCalls: 0, sampledTokens: 0 })
    return { baseUrl: `sim://${executionId}`, apiKey: '' }
  }

  setRoutes(changes: readonly RouteChange[]): void {
    this.#routes.apply(changes)
    for (const { executionId, engineId } of changes) this.#table.set(executionId, engineId)
    this.#watch.routed(this.#table)
  }

  async cancelInFlight(engineId: EngineId): Promise<number> {
    return this.#sampler.cancel(engineId)
  }

  async closeExecution(executionId: ExecutionId): Promise<ExecutionSummary> {
    const open = this.#open.get(executionId)
    this.#table.delete(executionId)
    if (open === undefined) return { modelCalls: 0, sampledTokens: 0, harnessErrors: 0 }
    open.ended.abort()
    await Promise.allSettled(open.running)
    this.#routes.forget(executionId)
    return { modelCalls: open.modelCalls, sampledTokens: open.sampledTokens, harnessErrors: 0 }
  }

  stats(): ForwardingStats {
    const opened = [...this.#open.values()]
    return {
      modelCalls: opened.reduce((sum, o) => sum + o.modelCalls, 0),
      sampledTokens: opened.reduce((sum, o) => sum + o.sampledTokens, 0),
      requestsMoved: this.#moved,
      held: this.#sampler.held,
      harnessErrors: 0,
      tokensMismatched: 0,
    }
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open.keys()].map(async (id) => this.closeExecution(id)))
  }

  /**
   * One model call of a harness. Rejects only when the harness ends meanwhile: any other error would be one that it
   * sees, and is on the record.
   */
  async call(executionId: ExecutionId, number: number, length: number): Promise<void> {
    const open = this.#open.get(executionId)
    if (open === undefined) throw new Error(`${executionId} is not open`)
    open.modelCalls++
    const running = this.#generate(executionId, open, number, length)
    open.running.add(running)
    try {
      await running
    } finally {
      open.running.delete(running)
    }
  }

  async #generate(executionId: ExecutionId, open: Open, number: number, length: number): Promise<void> {
    const requestId = `${executionId}/${number}`
    const sampled: Sampled = { tokenIds: [], logprobs: [], policyVersions: [] }
    const sampling = { maxTokens: 100, temperature: 1, topP: 1, topK: 0, stopTokenIds: [STOP], seed: 0 }
    try {
      const end = await this.#sampler.run({
        requestId,
        executionId,
        promptIds: Int32Array.of(length),
        sampling,
        signal: open.ended.signal,
        sampled,
        onTokens: () => undefined,
      })
      this.#moved += end.moves
      if (end.moves > 0) this.#around.chaos.count('call-moved')
    } catch (error) {
      if (!open.ended.signal.aborted || !hasCode(error, 'E_ENGINE_CANCELLED')) {
        this.#watch.failed(executionId, errorText(error))
      }
      throw error
    }
    const expected = Array.from({ length }, (_, at) => tokenAt(requestId, at, length))
    if (expected.join() !== sampled.tokenIds.join()) {
      this.#around.accuse(`${requestId} was answered ${sampled.tokenIds.join(' ')} instead of ${expected.join(' ')}`)
    }
    open.sampledTokens += length
    this.#around.chaos.hasWorked = true
    this.#watch.answered(executionId, sampled)
  }
}
