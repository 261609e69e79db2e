/** @file Which engine serves which execution now, and how to wait for that to change. */
import type { EngineId, ExecutionId } from '../core/ids.ts'
import type { Engine } from '../ports/engine.ts'
import type { RouteChange } from '../ports/forwarding.ts'

interface Route {
  readonly engineId: EngineId | undefined
  readonly routeEpoch: number
}

export class RouteTable {
  readonly #engines = new Map<EngineId, Engine>()
  readonly #routes = new Map<ExecutionId, Route>()
  readonly #waiters = new Map<ExecutionId, Set<() => void>>()

  setEngine(engine: Engine): void {
    this.#engines.set(engine.id, engine)
    this.#wakeRoutedTo(engine.id)
  }

  removeEngine(engineId: EngineId): void {
    this.#engines.delete(engineId)
    this.#wakeRoutedTo(engineId)
  }

  /** Applies the whole batch before anyone who waits looks at it. */
  apply(changes: readonly RouteChange[]): void {
    const applied = changes.filter(({ executionId, engineId, routeEpoch }) => {
      const present = this.#routes.get(executionId)
      if (present !== undefined && present.routeEpoch > routeEpoch) return false
      this.#routes.set(executionId, { engineId, routeEpoch })
      return true
    })
    for (const { executionId } of applied) this.#wake(executionId)
  }

  /** The engine to use now; undefined holds the execution. */
  engineOf(executionId: ExecutionId): Engine | undefined {
    const engineId = this.#routes.get(executionId)?.engineId
    return engineId === undefined ? undefined : this.#engines.get(engineId)
  }

  /** Resolves when the execution's route or its engine changes, `signal` aborts, or `timeoutMs` is over. */
  async changed(executionId: ExecutionId, signal: AbortSignal, timeoutMs?: number): Promise<void> {
    if (signal.aborted) return
    await new Promise<void>((resolve) => {
      const waiters = this.#waiters.get(executionId) ?? new Set()
      const timer = timeoutMs === undefined ? undefined : setTimeout(() => done(), timeoutMs)
      const done = (): void => {
        clearTimeout(timer)
        signal.removeEventListener('abort', done)
        waiters.delete(done)
        if (waiters.size === 0) this.#waiters.delete(executionId)
        resolve()
      }
      this.#waiters.set(executionId, waiters.add(done))
      signal.addEventListener('abort', done)
    })
  }

  forget(executionId: ExecutionId): void {
    this.#routes.delete(executionId)
  }

  #wakeRoutedTo(engineId: EngineId): void {
    for (const [executionId, route] of this.#routes) if (route.engineId === engineId) this.#wake(executionId)
  }

  #wake(executionId: ExecutionId): void {
    for (const done of this.#waiters.get(executionId) ?? []) done()
  }
}
