/** @file Owns the cell processes of a run: their sockets, logs, deaths and restarts. */
import { randomBytes } from 'node:crypto'
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError, invariant } from '../../../core/errors.ts'
import { cellId } from '../../../core/ids.ts'
import type { Json } from '../../../core/items.ts'
import { CELL_PROTOCOL_VERSION } from '../../../ports/cell.ts'
import type { CellSupervisor } from '../../../ports/cell.ts'
import { CellChild } from './cell-child.ts'
import { ProcessCell } from './process-cell.ts'
import type { CellDeadlines } from './process-cell.ts'
import { createRuntimeFolder, socketPath, sweepRuntimeFolders } from './runtime-folder.ts'

export interface CellSupervisorOptions {
  /** What its cells are called, before their index. Default `cell`. */
  readonly name?: string
  /** [cells] */
  readonly count: number
  /** Executions each cell serves at once. [executions] */
  readonly slots: number | ((index: number) => number)
  /** Program and arguments of a cell process, for example `[process.execPath, 'dist/cli/main.js', 'cell']`. */
  readonly argv: readonly string[] | ((index: number) => readonly string[])
  /** Environment of the cells; the owner's when left out. */
  readonly env?: Readonly<Record<string, string>>
  /** Handed to the cell's createEngine. */
  readonly engine: (index: number) => Json
  /** Receives `<name>-<index>.log`. */
  readonly logFolder: string
  /** Until a started cell answers. [ms] */
  readonly startMs?: number
  /** Between SIGTERM and SIGKILL. [ms] */
  readonly graceMs?: number
  readonly deadlines?: Partial<CellDeadlines>
}

const START_MS = 60_000
const GRACE_MS = 5000

export class CellProcessSupervisor implements CellSupervisor {
  readonly cells: readonly ProcessCell[]
  readonly #options: CellSupervisorOptions
  readonly #folder: string
  readonly #token = randomBytes(32).toString('hex')
  readonly #children: (CellChild | undefined)[]
  readonly #starting = new Map<number, Promise<void>>()
  readonly #listeners: ((index: number) => void)[] = []
  readonly #untold: number[] = []
  #isClosed = false

  private constructor(options: CellSupervisorOptions) {
    this.#options = options
    this.#folder = createRuntimeFolder()
    this.#children = Array.from({ length: options.count }, () => undefined)
    this.cells = this.#children.map(
      (_, index) =>
        new ProcessCell({
          cellId: cellId(`${options.name ?? 'cell'}-${index}`),
          address: socketPath(this.#folder, index),
          token: this.#token,
          ...(options.deadlines === undefined ? {} : { deadlines: options.deadlines }),
        }),
    )
  }

  /**
   * Starts every cell and returns once all of them answer. They are in mode `training`: load or pull
   * weights, then enterRollout.
   * @throws GyreError E_CELL_START; no process is left behind then.
   */
  static async start(options: CellSupervisorOptions): Promise<CellProcessSupervisor> {
    await sweepRuntimeFolders()
    mkdirSync(options.logFolder, { recursive: true })
    const supervisor = new CellProcessSupervisor(options)
    const starts = await Promise.allSettled(supervisor.cells.map((_, index) => supervisor.#start(index)))
    const failed = starts.find((s) => s.status === 'rejected')
    if (failed === undefined) return supervisor
    await supervisor.close()
    throw failed.reason
  }

  /** A death before the first listener is told to that listener. */
  onDeath(listener: (index: number) => void): void {
    this.#listeners.push(listener)
    for (const index of this.#untold.splice(0)) queueMicrotask(() => listener(index))
  }

  /** Process id of a cell, undefined while it is down. */
  pidOf(index: number): number | undefined {
    const child = this.#children[index]
    return child?.isRunning === true ? child.pid : undefined
  }

  /**
   * Ends what is left of a cell and starts it anew, at the same address and with epoch 0. A restart that
   * is under way is joined.
   * @throws GyreError E_CELL_START, E_CELL_CLOSED
   */
  async restart(index: number): Promise<void> {
    const running = this.#starting.get(index)
    if (running !== undefined) return running
    const restart = this.#restart(index).finally(() => this.#starting.delete(index))
    this.#starting.set(index, restart)
    await restart
  }

  /** Ends every cell and removes the sockets. Idempotent. */
  async close(): Promise<void> {
    this.#isClosed = true
    const running = this.#children.filter((child) => child !== undefined)
    await Promise.all(running.map((child) => child.end(this.#options.graceMs ?? GRACE_MS)))
    await Promise.allSettled(this.#starting.values())
    await Promise.all(this.cells.map((cell) => cell.disconnect()))
    rmSync(this.#folder, { recursive: true, force: true })
  }

  #tellDeath(index: number): void {
    if (this.#listeners.length === 0) this.#untold.push(index)
    for (const listener of this.#listeners) listener(index)
  }

  async #restart(index: number): Promise<void> {
    await this.#children[index]?.end(0)
    await this.#start(index)
  }

  async #start(index: number): Promise<void> {
    if (this.#isClosed) {
      throw new GyreError(`${this.cells[index]?.cellId} cannot start: its supervisor is closed`, {
        boundary: 'cell',
        code: 'E_CELL_CLOSED',
      })
    }
    const cell = this.cells[index]
    invariant(cell !== undefined, `cell ${index} is one of ${this.cells.length}`)
    const { argv, env, engine, slots, logFolder, startMs } = this.#options
    const child = new CellChild({
      argv: typeof argv === 'function' ? argv(index) : argv,
      env,
      boot: {
        protocolVersion: CELL_PROTOCOL_VERSION,
        cellId: cell.cellId,
        address: cell.address,
        token: this.#token,
        slots: typeof slots === 'number' ? slots : slots(index),
        engine: engine(index),
      },
      logFile: join(logFolder, `${cell.cellId}.log`),
      onDeath: () => this.#tellDeath(index),
    })
    this.#children[index] = child
    await child.ready(cell, startMs ?? START_MS)
  }
}
