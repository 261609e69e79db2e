/** @file Role transfers under way and done, as a live panel and a summary want them. */
import type { RoleTransfer } from './controller-types.ts'

interface Underway {
  readonly to: RoleTransfer['to']
  readonly sinceMs: number
  readonly liveExecutions: number
  readonly executionsMoved: number
  requestsMoved: number
}

export class TransferLog {
  readonly #underway = new Map<number, Underway>()
  #total = 0
  #live = 0
  #requestsMoved = 0

  /** Transfers in both directions. */
  get total(): number {
    return this.#total
  }
  /** Moves to training made while executions were live. */
  get live(): number {
    return this.#live
  }
  get requestsMoved(): number {
    return this.#requestsMoved
  }

  begin(
    cell: number,
    facts: {
      readonly to: RoleTransfer['to']
      readonly liveExecutions: number
      readonly executionsMoved: number
      readonly nowMs: number
    },
  ): void {
    const { nowMs, ...rest } = facts
    this.#underway.set(cell, { ...rest, sinceMs: nowMs, requestsMoved: 0 })
  }

  moved(cell: number, requests: number): void {
    this.#requestsMoved += requests
    const transfer = this.#underway.get(cell)
    if (transfer !== undefined) transfer.requestsMoved = requests
  }

  /** The cell died: there is no transfer any more. */
  drop(cell: number): void {
    this.#underway.delete(cell)
  }

  /** The finished transfer; undefined when the cell changed its role without one, as after a restart. */
  end(cell: number, nowMs: number): RoleTransfer | undefined {
    const transfer = this.#underway.get(cell)
    if (transfer === undefined) return undefined
    this.#underway.delete(cell)
    this.#total++
    if (transfer.to === 'training' && transfer.liveExecutions > 0) this.#live++
    const { sinceMs, ...facts } = transfer
    return { ...facts, cell, durationMs: nowMs - sinceMs }
  }
}
