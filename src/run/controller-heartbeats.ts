/**
 * @file Who is alive: every cell and every serving standalone engine is asked at a steady pace, and reported as failed
 * when it twice in a row says nothing, or what cannot be. An answer needs only the event loop of a cell, so long
 * numeric work is no silence; a stopped process and a blocked event loop are.
 */
import { errorText } from '../core/errors.ts'
import type { CellHealth } from '../ports/cell.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { CellSlot, SchedulerState } from '../scheduler/types.ts'
import type { ControllerOptions } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

/** One miss may be a machine that was busy for a moment. */
const MISSES = 2

export interface HeartbeatDeps {
  readonly options: ControllerOptions
  readonly waits: Waits
  readonly state: () => SchedulerState
  readonly post: (event: SchedulerEvent) => void
  readonly cellFails: (cell: number, reason: string) => void
  readonly engineFails: (engine: number, reason: string) => void
}

/** What is known of one cell or engine between two beats. */
interface Pulse {
  isAsked: boolean
  misses: number
}

export class Heartbeats {
  readonly #deps: HeartbeatDeps
  readonly #cells: Pulse[]
  readonly #engines: Pulse[]
  /** Generations running on each cell in rollout that answered since the last beat. */
  readonly #running = new Map<number, number>()

  constructor(deps: HeartbeatDeps) {
    this.#deps = deps
    const { supervisor, standalone } = deps.options
    this.#cells = supervisor.cells.map(() => ({ isAsked: false, misses: 0 }))
    this.#engines = standalone.map(() => ({ isAsked: false, misses: 0 }))
  }

  /** Until the controller ends. */
  begin(): void {
    const { waits, options } = this.#deps
    waits.alarm(options.clock.now() + options.deadlines.heartbeatMs, () => {
      this.#beat()
      this.begin()
    })
  }

  #beat(): void {
    this.#postLoad()
    const { cells, standalone } = this.#deps.state()
    for (const [index, pulse] of this.#cells.entries()) {
      const cell = cells[index]
      if (cell === undefined || cell.phase === 'failed') pulse.misses = 0
      else if (!pulse.isAsked) void this.#askCell(index, pulse, cell)
    }
    for (const [index, pulse] of this.#engines.entries()) {
      const slot = standalone[index]
      // One that takes weights may answer nothing else meanwhile; taking them has its own deadline.
      if (slot?.phase !== 'serving' || slot.publishing) pulse.misses = 0
      else if (!pulse.isAsked) void this.#askEngine(index, pulse, slot.epoch)
    }
  }

  async #askCell(index: number, pulse: Pulse, before: CellSlot): Promise<void> {
    const { options, post, state, cellFails } = this.#deps
    pulse.isAsked = true
    const health = await this.#healthOf(index)
    pulse.isAsked = false
    const now = state().cells[index]
    // It is about a process that is gone.
    if (now === undefined || now.phase === 'failed' || now.restarts !== before.restarts) return
    const isSteady = isSameRole(before, now)
    const fault = typeof health === 'string' ? health : contradiction(health, now, isSteady)
    if (typeof health !== 'string' && isSteady && now.phase === 'rollout') this.#running.set(index, health.running)
    pulse.misses = fault === undefined ? 0 : pulse.misses + 1
    if (pulse.misses < MISSES) return
    pulse.misses = 0
    const pace = `asked every ${options.deadlines.heartbeatMs} ms`
    cellFails(index, `${MISSES} heartbeats in a row missed (${pace}): ${fault}`)
    post({ kind: 'cell-failed', cell: index, epoch: now.epoch })
  }

  /** The answer, or why there is none. */
  async #healthOf(index: number): Promise<CellHealth | string> {
    const { options, waits } = this.#deps
    const { healthMs } = options.deadlines
    const cell = options.supervisor.cells[index]
    if (cell === undefined) return `there is no cell ${index}`
    try {
      return await waits.within(cell.health(healthMs), healthMs, `asking cell ${index} whether it is alive`)
    } catch (error) {
      return errorText(error)
    }
  }

  async #askEngine(index: number, pulse: Pulse, epoch: number): Promise<void> {
    const { options, waits, post, state, engineFails } = this.#deps
    const engine = options.standalone[index]
    if (engine === undefined) return
    pulse.isAsked = true
    let fault: string | undefined
    try {
      await waits.stoppable((signal) => engine.probe(signal), options.deadlines.healthMs, `asking ${engine.id}`)
    } catch (error) {
      fault = errorText(error)
    }
    pulse.isAsked = false
    if (waits.ended.aborted || state().standalone[index]?.epoch !== epoch) return
    pulse.misses = fault === undefined ? 0 : pulse.misses + 1
    if (fault === undefined || pulse.misses < MISSES) return
    pulse.misses = 0
    engineFails(index, fault)
    post({ kind: 'standalone-failed', engine: index, epoch })
  }

  /** Of the cells: how many generations a standalone engine runs is not known here. */
  #postLoad(): void {
    const { state, post } = this.#deps
    const { cells, config } = state()
    const slots = cells.filter((cell) => cell.phase === 'rollout').length * config.cellSlots
    const isComplete = cells.every((cell, index) => cell.phase !== 'rollout' || this.#running.has(index))
    const running = [...this.#running]
      .filter(([index]) => cells[index]?.phase === 'rollout')
      .reduce((sum, [, count]) => sum + count, 0)
    this.#running.clear()
    if (slots > 0 && isComplete) post({ kind: 'load-seen', share: running / slots })
  }
}

/** No command has changed what the cell should answer. */
function isSameRole(before: CellSlot, now: CellSlot): boolean {
  return (
    before.epoch === now.epoch &&
    before.phase === now.phase &&
    before.policyVersion === now.policyVersion &&
    !before.publishing &&
    !now.publishing
  )
}

/** What in an answer cannot be, if the cell is ours and does what it was told. */
function contradiction(health: CellHealth, cell: CellSlot, isSteady: boolean): string | undefined {
  if (health.epoch > cell.epoch) return `it obeys epoch ${health.epoch}, and this controller is at ${cell.epoch}`
  if (!isSteady) return undefined
  if (cell.phase === 'training' && health.mode !== 'training') return 'it rolls out, and was told to train'
  if (cell.phase !== 'rollout') return undefined
  if (health.mode !== 'rollout') return 'it admits no generation, and was told to'
  if (health.policyVersion === cell.policyVersion) return undefined
  return `it serves policy version ${health.policyVersion} instead of ${cell.policyVersion}`
}
