/**
 * @file Cells outside the elastic loop, where no scheduler restarts them: while first weights are trained, while they
 * load a checkpoint, while the held-out tasks run.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { errorText, GyreError } from '../../core/errors.ts'
import type { Cell, CellSupervisor } from '../../ports/cell.ts'
import type { ForwardingPoint } from '../../ports/forwarding.ts'

/** Between two tries to bring a cell back. [ms] */
const PAUSE_MS = 500

export interface KeeperDeps {
  readonly supervisor: CellSupervisor
  readonly forwarding: Pick<ForwardingPoint, 'setEngine' | 'removeEngine'>
  /** Brings a fresh cell into rollout with the weights of the last checkpoint. */
  readonly load: (cell: Cell) => Promise<void>
  /** Restarts of one cell before it is given up. */
  readonly restarts: number
  readonly note: (text: string) => void
  readonly onRestart: () => void
}

export class CellKeeper {
  readonly #deps: KeeperDeps
  readonly #restarts = new Map<number, number>()
  /** Cells that are being brought back, and whether they died again meanwhile. */
  readonly #reviving = new Map<number, { hasDied: boolean; readonly done: Promise<void> }>()
  #fail: ((error: unknown) => void) | undefined

  constructor(deps: KeeperDeps) {
    this.#deps = deps
    deps.supervisor.onDeath((index) => this.#died(index))
  }

  /**
   * Runs `work` while every cell that dies is brought back into rollout; its calls go on where they were.
   * @throws the error of a cell that could not be brought back, else what `work` throws.
   */
  async during<T>(work: () => Promise<T>): Promise<T> {
    const failed = new Promise<never>((_, reject) => {
      this.#fail = reject
    })
    failed.catch(() => undefined)
    try {
      // One may have died while nobody looked.
      const alive = this.#deps.supervisor.cells.map(async (cell, index) => {
        await cell.hello().catch(() => this.#died(index))
      })
      await Promise.all(alive)
      return await Promise.race([work(), failed])
    } finally {
      this.#fail = undefined
      await Promise.allSettled([...this.#reviving.values()].map((one) => one.done))
    }
  }

  /** Every cell in rollout with the weights of the last checkpoint; one that is lost meanwhile is started anew. */
  async loadAll(): Promise<void> {
    const { supervisor, load, note, onRestart, restarts } = this.#deps
    const loading = supervisor.cells.map(async (cell, index) => {
      for (let tries = 0; ; tries++) {
        try {
          return await load(cell)
        } catch (error) {
          if (!isLostCell(error) || tries >= restarts) throw error
          note(`cell ${index} failed: ${errorText(error)}`)
          onRestart()
        }
        await this.#restart(index)
      }
    })
    await Promise.all(loading)
  }

  /**
   * Runs `work`, which uses all cells in training, again from fresh cells when one of them was lost in it.
   * @throws what `work` throws when that is not for a lost cell, or a cell was lost too often.
   */
  async fromFresh<T>(work: () => Promise<T>): Promise<T> {
    const { supervisor, restarts, note, onRestart } = this.#deps
    for (let tries = 0; ; tries++) {
      try {
        return await work()
      } catch (error) {
        if (!isLostCell(error) || tries >= restarts) throw error
        note(`a cell was lost: beginning anew (${errorText(error)})`)
        onRestart()
      }
      for (const [index] of supervisor.cells.entries()) await this.#restart(index)
    }
  }

  #died(index: number): void {
    const reviving = this.#reviving.get(index)
    if (reviving !== undefined) reviving.hasDied = true
    else if (this.#fail !== undefined) this.#reviving.set(index, { hasDied: false, done: this.#revive(index) })
  }

  async #revive(index: number): Promise<void> {
    const { supervisor, forwarding, load, note, onRestart } = this.#deps
    const cell = supervisor.cells[index]
    if (cell === undefined) return
    note(`cell ${index} failed: its process ended`)
    forwarding.removeEngine(cell.id)
    try {
      // Its entry in the map is made once this has begun.
      await Promise.resolve()
      for (;;) {
        const reviving = this.#reviving.get(index)
        if (reviving !== undefined) reviving.hasDied = false
        onRestart()
        await this.#restart(index)
        const isLoaded = await load(cell).then(
          () => true,
          () => false,
        )
        if (isLoaded && reviving?.hasDied !== true) break
        await sleep(PAUSE_MS)
      }
      forwarding.setEngine(cell)
      note(`cell ${index} is back`)
    } catch (error) {
      this.#fail?.(error)
    } finally {
      this.#reviving.delete(index)
    }
  }

  /** Until its process is up. @throws GyreError E_CELL_START when that failed too often. */
  async #restart(index: number): Promise<void> {
    for (;;) {
      const used = (this.#restarts.get(index) ?? 0) + 1
      this.#restarts.set(index, used)
      try {
        await this.#deps.supervisor.restart(index)
        return
      } catch (error) {
        if (used > this.#deps.restarts) throw error
      }
      await sleep(PAUSE_MS)
    }
  }
}

/** Whatever a cell says while it or its peer goes down. */
function isLostCell(error: unknown): boolean {
  return error instanceof GyreError && (error.boundary === 'cell' || error.boundary === 'transfer')
}
