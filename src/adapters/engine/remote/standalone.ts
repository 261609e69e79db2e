/**
 * @file A server as a rollout engine of a run: it takes every published policy version from a checkpoint folder.
 *
 * A token is stamped with a version only while it is known that the server has it. While weights change, and after a
 * connection was lost until the server has said that its weights are still the same, it takes no generation: the
 * gateway goes on elsewhere, or waits.
 */
import { hasCode } from '../../../core/errors.ts'
import type { EngineId } from '../../../core/ids.ts'
import type { GenerateEvent, GenerateRequest, PublishedWeights, StandaloneEngine } from '../../../ports/engine.ts'
import type { OpenedServer } from './connect.ts'
import { foreignWeights, takesNoRequests } from './failures.ts'
import type { HttpClient } from './http.ts'
import type { RemoteCapabilities } from './remote-engine.ts'
import { servableFolder } from './servable-folder.ts'

/** How one kind of server is given weights and asked which it has. */
export interface WeightRoutes {
  /**
   * Makes the server serve this folder and nothing sampled or cached before it.
   * @returns what the server calls the weights from now on; undefined when it names none.
   * @throws GyreError
   */
  load(http: HttpClient, weights: PublishedWeights, signal: AbortSignal): Promise<string | undefined>
  /** What the server calls its weights now; undefined when it names none. @throws GyreError when it does not answer. */
  label(http: HttpClient, signal?: AbortSignal): Promise<string | undefined>
}

/**
 * `unknown`: no weights were given yet, or a loading failed, or it has others. `doubtful`: its connection was lost, so
 * it may have been started again.
 */
type State = 'unknown' | 'loading' | 'serving' | 'doubtful'

export class RemoteStandaloneEngine implements StandaloneEngine {
  readonly id: EngineId
  readonly slots: number
  readonly #opened: OpenedServer
  readonly #routes: WeightRoutes
  readonly #running = new Set<AbortController>()
  #state: State = 'unknown'
  #policyVersion = 0
  /** Whoever gives it weights knows that they are needed. */
  #isLossKnown = true
  #loading: Promise<void> = Promise.resolve()
  /** Times its connection was lost. */
  #doubts = 0

  constructor(opened: OpenedServer, routes: WeightRoutes, slots: number) {
    this.id = opened.engine.id
    this.slots = slots
    this.#opened = opened
    this.#routes = routes
  }

  get capabilities(): RemoteCapabilities {
    return this.#opened.engine.capabilities
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const { where } = this.#opened.http
    if (this.#state !== 'serving') throw takesNoRequests(where, WHY[this.#state])
    const controller = new AbortController()
    const onAbort = (): void => controller.abort(signal.reason)
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort)
    this.#running.add(controller)
    try {
      yield* this.#opened.engine.generate(request, controller.signal)
    } catch (error) {
      if (controller.signal.aborted && !signal.aborted) throw takesNoRequests(where, WHY.loading)
      this.#doubt(error)
      throw error
    } finally {
      signal.removeEventListener('abort', onAbort)
      this.#running.delete(controller)
    }
  }

  /** For messages: which server, where. */
  get where(): string {
    return this.#opened.http.where
  }

  /** Makes the checkpoint's folder for servers where it is missing, and serves that. */
  async takeWeights(weights: PublishedWeights, signal: AbortSignal): Promise<void> {
    await this.takeFolder({ ...weights, folder: servableFolder(weights.folder) }, signal)
  }

  /**
   * Serves the folder as it is. Calls are carried out one after the other; running generations are cancelled, and go on
   * from their tokens.
   */
  async takeFolder(weights: PublishedWeights, signal: AbortSignal): Promise<void> {
    const loading = this.#loading.then(() => this.#load(weights, signal))
    this.#loading = loading.catch(() => undefined)
    await loading
  }

  /**
   * @throws GyreError E_ENGINE_UNREACHABLE, E_ENGINE_TIMEOUT; E_ENGINE_WEIGHTS when it answers but no longer serves
   * what it was given: call `takeWeights` again.
   */
  async probe(signal: AbortSignal): Promise<void> {
    const { http, versions } = this.#opened
    const label = await this.#routes.label(http, signal)
    if (this.#state === 'loading' || this.#state === 'unknown') {
      this.#tellLoss(label)
      return
    }
    const areSame = versions.arePinned(label)
    if (areSame === true) this.#state = 'serving'
    else if (areSame === false || this.#state === 'doubtful') this.#state = 'unknown'
    this.#tellLoss(label)
  }

  async close(): Promise<void> {
    await this.#opened.engine.close()
  }

  async #load(weights: PublishedWeights, signal: AbortSignal): Promise<void> {
    const { http, versions } = this.#opened
    this.#state = 'loading'
    this.#isLossKnown = true
    for (const controller of this.#running) controller.abort()
    try {
      signal.throwIfAborted()
      const label = await this.#routes.load(http, weights, signal)
      versions.pin(weights.policyVersion, label, http.where)
      this.#policyVersion = weights.policyVersion
      this.#state = 'serving'
      this.#isLossKnown = false
    } finally {
      if (this.#state === 'loading') this.#state = 'unknown'
    }
  }

  #tellLoss(label: string | undefined): void {
    if (this.#state !== 'unknown' || this.#isLossKnown) return
    throw foreignWeights(this.#opened.http.where, label ?? 'nothing', this.#policyVersion)
  }

  /** After a lost connection it may be another process, with the weights it was started with. */
  #doubt(error: unknown): void {
    if (this.#state !== 'serving') return
    const isLost = hasCode(error, 'E_ENGINE_UNREACHABLE') && error.details['status'] === undefined
    if (!isLost && !hasCode(error, 'E_ENGINE_WEIGHTS')) return
    this.#state = 'doubtful'
    void this.#check(++this.#doubts)
  }

  /** Asks at once, so that a single lost connection costs no more than a moment. A later `probe` asks again. */
  async #check(doubt: number): Promise<void> {
    const { http, versions } = this.#opened
    try {
      const areSame = versions.arePinned(await this.#routes.label(http))
      if (this.#state === 'doubtful' && doubt === this.#doubts) this.#state = areSame === true ? 'serving' : 'unknown'
    } catch {
      // It does not answer yet: the next probe asks again.
    }
  }
}

const WHY: Readonly<Record<Exclude<State, 'serving'>, string>> = {
  unknown: 'it has not been given the present weights',
  loading: 'its weights are changing',
  doubtful: 'its connection was lost, and it is being asked which weights it has',
}
