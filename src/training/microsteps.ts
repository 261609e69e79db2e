/**
 * @file The micro-steps of one training step: cells claim them, and each counts once in the reduced gradient.
 *
 * A cell that leaves takes its gradient with it, so everything it claimed or accumulated is pending again.
 */
import { invariant } from '../core/errors.ts'
import type { CellId } from '../core/ids.ts'

/** Index of a micro-step within its training step, dense, in the order appended. */
export type MicroStepId = number

type MicroStepState =
  | { readonly kind: 'pending' }
  | { readonly kind: 'claimed'; readonly cell: CellId; readonly epoch: number }
  /** Its gradient is in the accumulator of this cell. */
  | { readonly kind: 'accumulated'; readonly cell: CellId }

const PENDING: MicroStepState = { kind: 'pending' }

export class MicroStepQueue {
  readonly #states: MicroStepState[] = []
  #closed = false

  /** Adds `count` pending micro-steps, as groups stream in. Returns their ids. */
  append(count: number): readonly MicroStepId[] {
    invariant(!this.#closed, 'no micro-step is added to a closed step')
    return Array.from({ length: count }, () => this.#states.push(PENDING) - 1)
  }

  /** No more micro-steps will come. */
  close(): void {
    this.#closed = true
  }

  /** The first pending micro-step, now owned by this cell; undefined when none is pending. */
  claim(cell: CellId, epoch: number): MicroStepId | undefined {
    const id = this.#states.findIndex((state) => state.kind === 'pending')
    if (id < 0) return undefined
    this.#states[id] = { kind: 'claimed', cell, epoch }
    return id
  }

  /**
   * The cell has added the gradient of its claim. False, and nothing changes, when the claim is not the cell's
   * any more: a repeated or late report must not count twice. Give `epoch` to refuse reports from before a rejoin.
   */
  done(id: MicroStepId, cell: CellId, epoch?: number): boolean {
    const state = this.#states[id]
    if (state?.kind !== 'claimed' || state.cell !== cell) return false
    if (epoch !== undefined && epoch !== state.epoch) return false
    this.#states[id] = { kind: 'accumulated', cell }
    return true
  }

  /** Gives a claim back that the cell could not run, without loss of its gradient. False when it is not the cell's. */
  release(id: MicroStepId, cell: CellId): boolean {
    const state = this.#states[id]
    if (state?.kind !== 'claimed' || state.cell !== cell) return false
    this.#states[id] = PENDING
    return true
  }

  /** Returns everything the cell claimed or accumulated to the queue. Its gradient must not be reduced. */
  memberLost(cell: CellId): readonly MicroStepId[] {
    const lost = this.#ids((state) => state.kind !== 'pending' && state.cell === cell)
    for (const id of lost) this.#states[id] = PENDING
    return lost
  }

  /** Micro-steps whose gradient this cell holds, ascending. */
  accumulatedBy(cell: CellId): readonly MicroStepId[] {
    return this.#ids((state) => state.kind === 'accumulated' && state.cell === cell)
  }

  /** Cells that hold gradient, by their first micro-step. The gradients to reduce. */
  contributors(): readonly CellId[] {
    return [...new Set(this.#states.flatMap((state) => (state.kind === 'accumulated' ? [state.cell] : [])))]
  }

  counts(): { readonly pending: number; readonly claimed: number; readonly accumulated: number } {
    const of = (kind: MicroStepState['kind']): number => this.#ids((state) => state.kind === kind).length
    return { pending: of('pending'), claimed: of('claimed'), accumulated: of('accumulated') }
  }

  /** True when the step is closed and every micro-step is in some member's accumulator. */
  get finished(): boolean {
    return this.#closed && this.#states.every((state) => state.kind === 'accumulated')
  }

  #ids(holds: (state: MicroStepState) => boolean): readonly MicroStepId[] {
    return this.#states.flatMap((state, id) => (holds(state) ? [id] : []))
  }
}
