/** @file Standalone rollout engines: they take every published version, and one that failed is asked until it answers. */
import { errorText, invariant } from '../core/errors.ts'
import type { PublishedWeights, StandaloneEngine } from '../ports/engine.ts'
import type { ForwardingPoint } from '../ports/forwarding.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { CommandOf, ControllerDeadlines } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

/** Between two questions to an engine that stays away. [ms] */
const LONGEST_PAUSE_MS = 30_000

export interface StandaloneDeps {
  readonly engines: readonly StandaloneEngine[]
  readonly forwarding: ForwardingPoint
  readonly deadlines: ControllerDeadlines
  readonly waits: Waits
  /** The weights published last. */
  readonly published: () => PublishedWeights
  readonly failed: (engine: number, reason: string) => void
}

export class StandaloneCommands {
  readonly #deps: StandaloneDeps

  constructor(deps: StandaloneDeps) {
    this.#deps = deps
  }

  engine(index: number): StandaloneEngine {
    const engine = this.#deps.engines[index]
    invariant(engine !== undefined, `there is a standalone engine ${index}`)
    return engine
  }

  /** Before the run: the engine gets the weights the run starts with. */
  async open(index: number): Promise<void> {
    await this.#refresh(index)
    this.#deps.forwarding.setEngine(this.engine(index))
  }

  async publish(command: CommandOf<'publish-standalone'>): Promise<SchedulerEvent> {
    const { engine, epoch } = command
    try {
      const version = await this.#take(engine)
      return { kind: 'standalone-published', engine, epoch, version }
    } catch (error) {
      this.#deps.failed(engine, errorText(error))
      return { kind: 'standalone-failed', engine, epoch }
    }
  }

  /** Asks until it answers and holds what is published then. Undefined when the controller ended first. */
  async recover(command: CommandOf<'recover-standalone'>): Promise<SchedulerEvent | undefined> {
    const { engine, epoch } = command
    const { forwarding, waits, deadlines } = this.#deps
    // Its running calls go on at their new routes.
    forwarding.removeEngine(this.engine(engine).id)
    for (let pauseMs = deadlines.heartbeatMs; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      await waits.pause(pauseMs)
      if (waits.ended.aborted) return undefined
      try {
        // Not asked first: one that serves other weights than it was given says so until it is given some.
        const version = await this.#take(engine)
        return { kind: 'standalone-recovered', engine, epoch, version }
      } catch (error) {
        this.#deps.failed(engine, errorText(error))
      }
    }
  }

  async #refresh(index: number): Promise<number> {
    const engine = this.engine(index)
    const { waits, deadlines } = this.#deps
    await waits.stoppable((signal) => engine.probe(signal), deadlines.healthMs, `asking ${engine.id}`)
    return this.#take(index)
  }

  /** @returns the version it serves now. */
  async #take(index: number): Promise<number> {
    const engine = this.engine(index)
    const { waits, deadlines, published } = this.#deps
    const weights = published()
    const what = `${engine.id} taking policy version ${weights.policyVersion}`
    await waits.stoppable((signal) => engine.takeWeights(weights, signal), deadlines.weightsMs, what)
    return weights.policyVersion
  }
}
