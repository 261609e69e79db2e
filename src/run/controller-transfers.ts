/** @file Role transfers under way and done, with the time of each phase, as a live panel and a summary want them. */
import type { FetchedKv } from '../ports/cell.ts'
import type { CellSlot } from '../scheduler/types.ts'
import type { RoleTransfer } from './controller-types.ts'

interface Underway {
  readonly to: RoleTransfer['to']
  readonly sinceMs: number
  readonly liveExecutions: number
  readonly executionsMoved: number
  requestsMoved: number
  tokensHandedOver: number
  bytesHandedOver: number
  /** When requests began to be cancelled, and when the cell was told to enter training. */
  readonly reached: Partial<Record<'cancel' | 'enter', number>>
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

  /** Of a transfer that is under way, a later phase: nothing is changed. */
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
    if (this.#underway.get(cell)?.to === facts.to) return
    const zero = { requestsMoved: 0, tokensHandedOver: 0, bytesHandedOver: 0, reached: {} }
    this.#underway.set(cell, { ...rest, ...zero, sinceMs: nowMs })
  }

  enter(cell: number, phase: 'cancel' | 'enter', nowMs: number): void {
    const transfer = this.#underway.get(cell)
    if (transfer !== undefined) transfer.reached[phase] = nowMs
  }

  handedOver(cell: number, fetched: FetchedKv): void {
    const transfer = this.#underway.get(cell)
    if (transfer === undefined) return
    transfer.tokensHandedOver = fetched.tokens
    transfer.bytesHandedOver = fetched.bytes
  }

  moved(cell: number, requests: number): void {
    this.#requestsMoved += requests
    const transfer = this.#underway.get(cell)
    if (transfer !== undefined) transfer.requestsMoved = requests
  }

  /** A cell that serves again was never let go: its move was undone. */
  observe(cells: readonly CellSlot[]): void {
    for (const [cell, { to }] of this.#underway) {
      if (to === 'training' && cells[cell]?.phase === 'rollout') this.#underway.delete(cell)
    }
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
    const { sinceMs, reached, ...facts } = transfer
    const enterAt = reached.enter ?? sinceMs
    const cancelAt = reached.cancel ?? enterAt
    return {
      ...facts,
      cell,
      durationMs: nowMs - sinceMs,
      handoverMs: cancelAt - sinceMs,
      cancelMs: enterAt - cancelAt,
      enterMs: nowMs - enterAt,
    }
  }
}
