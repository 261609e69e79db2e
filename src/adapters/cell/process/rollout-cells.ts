/**
 * @file Cells that only roll out: processes like every cell, which never train and take every published policy version
 * from its checkpoint. Owns their processes: one that dies is started again, and serves once it has been given weights.
 */
import { GyreError, errorText, invariant } from '../../../core/errors.ts'
import type { EngineId } from '../../../core/ids.ts'
import type { Cell } from '../../../ports/cell.ts'
import type { GenerateEvent, GenerateRequest, PublishedWeights, StandaloneEngine } from '../../../ports/engine.ts'
import { CellProcessSupervisor } from './supervisor.ts'
import type { CellSupervisorOptions } from './supervisor.ts'

export interface RolloutCellsOptions extends Omit<CellSupervisorOptions, 'count' | 'slots'> {
  /** Executions each serves at once; one cell for each entry. [executions] */
  readonly slots: readonly number[]
  /** Between two tries to start one that does not start; doubled each time up to ten of them. Default 1 s. [ms] */
  readonly restartPauseMs?: number
}

const RESTART_PAUSE_MS = 1000
const LONGEST_PAUSES = 10

export class RolloutCells {
  readonly engines: readonly RolloutCell[]
  readonly #supervisor: CellProcessSupervisor

  private constructor(supervisor: CellProcessSupervisor, { slots, restartPauseMs }: RolloutCellsOptions) {
    this.#supervisor = supervisor
    this.engines = supervisor.cells.map((cell, index) => {
      const child = {
        isUp: () => supervisor.pidOf(index) !== undefined,
        restart: async () => supervisor.restart(index),
      }
      return new RolloutCell(cell, slots[index] ?? 1, child, restartPauseMs ?? RESTART_PAUSE_MS)
    })
    supervisor.onDeath((index) => {
      const engine = this.engines[index]
      invariant(engine !== undefined, `rollout cell ${index} is one of ${this.engines.length}`)
      engine.died()
    })
  }

  /** Starts every one. @throws GyreError E_CELL_START; no process is left behind then. */
  static async start(options: RolloutCellsOptions): Promise<RolloutCells> {
    const { slots, restartPauseMs: _pause, ...rest } = options
    const supervisor = await CellProcessSupervisor.start({
      name: 'rollout',
      ...rest,
      count: slots.length,
      slots: (index) => slots[index] ?? 1,
    })
    return new RolloutCells(supervisor, options)
  }

  /** Process id, undefined while it is down. */
  pidOf(index: number): number | undefined {
    return this.#supervisor.pidOf(index)
  }

  async close(): Promise<void> {
    for (const engine of this.engines) engine.close()
    await this.#supervisor.close()
  }
}

interface Child {
  readonly isUp: () => boolean
  readonly restart: () => Promise<void>
}

/** The tokens carry the version that the cell itself stamps; it admits nothing while its weights change. */
class RolloutCell implements StandaloneEngine {
  readonly id: EngineId
  readonly slots: number
  readonly #cell: Cell
  readonly #child: Child
  readonly #pauseMs: number
  #epoch = 0
  /** Why its process does not serve; undefined while it has the weights it was given last. */
  #lack: string | undefined
  #taking: Promise<void> = Promise.resolve()
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(cell: Cell, slots: number, child: Child, pauseMs: number) {
    this.id = cell.id
    this.slots = slots
    this.#cell = cell
    this.#child = child
    this.#pauseMs = pauseMs
  }

  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    return this.#cell.generate(request, signal)
  }

  /** Calls are carried out one after the other. A process that is down is started first. */
  async takeWeights(weights: PublishedWeights, signal: AbortSignal): Promise<void> {
    const taking = this.#taking.then(() => this.#take(weights, signal))
    this.#taking = taking.catch(() => undefined)
    await taking
  }

  /** @throws GyreError E_ENGINE_UNREACHABLE also when its process is a new one without weights. */
  async probe(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (this.#lack !== undefined) throw this.#unreachable(this.#lack)
    try {
      await this.#cell.hello()
    } catch (error) {
      throw this.#unreachable(errorText(error), error)
    }
  }

  /** Called when its process ended unasked. */
  died(): void {
    this.#lack = 'its process ended'
    this.#startAgain(this.#pauseMs, this.#pauseMs)
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  async #take({ folder, policyVersion }: PublishedWeights, signal: AbortSignal): Promise<void> {
    this.#lack ??= 'it takes new weights'
    try {
      const { epoch } = await this.#up(signal)
      this.#epoch = Math.max(this.#epoch, epoch) + 1
      await this.#cell.enterTraining(this.#epoch)
      signal.throwIfAborted()
      await this.#cell.loadCheckpoint(this.#epoch, folder, policyVersion)
      signal.throwIfAborted()
      await this.#cell.enterRollout(this.#epoch)
      this.#lack = undefined
    } catch (error) {
      this.#lack = errorText(error)
      throw error
    }
  }

  /** A cell that says hello; one whose process is down is started. */
  async #up(signal: AbortSignal): Promise<{ readonly epoch: number }> {
    signal.throwIfAborted()
    try {
      return await this.#cell.hello()
    } catch {
      signal.throwIfAborted()
      await this.#child.restart()
      return this.#cell.hello()
    }
  }

  #startAgain(afterMs: number, pauseMs: number): void {
    if (this.#isClosed) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      void this.#tryRestart(Math.min(pauseMs * 2, this.#pauseMs * LONGEST_PAUSES))
    }, afterMs)
  }

  async #tryRestart(nextPauseMs: number): Promise<void> {
    // Whoever gave it weights meanwhile has started it.
    if (this.#child.isUp()) return
    try {
      await this.#child.restart()
      this.#lack = 'its process is new and has no weights yet'
    } catch (error) {
      this.#lack = errorText(error)
      this.#startAgain(nextPauseMs, nextPauseMs)
    }
  }

  #unreachable(why: string, cause?: unknown): GyreError {
    return new GyreError(`${this.id} does not serve: ${why}`, {
      boundary: 'engine',
      code: 'E_ENGINE_UNREACHABLE',
      retryable: true,
      cause,
    })
  }
}
