/** @file Totals over all attempts of a run, written while they grow: what a kill -9 takes away is a moment, not the count. */
import type { Clock } from '../core/clock.ts'
import type { Store } from '../ports/store.ts'
import type { ControllerEvent } from './controller-types.ts'
import { RunCounters } from './counters.ts'
import { isDiskTrouble } from './patience.ts'

export interface Traffic {
  readonly requestsMoved: number
  readonly tokensMismatched: number
}

export class RunTotals {
  readonly #counters: RunCounters
  readonly #clock: Clock
  /** Counts of this process so far. */
  readonly #traffic: () => Traffic
  readonly #pending = new Map<string, number>()
  #saved: Traffic = { requestsMoved: 0, tokensMismatched: 0 }
  #savedAtMs: number

  constructor(store: Store, clock: Clock, traffic: () => Traffic) {
    this.#counters = new RunCounters(store)
    this.#clock = clock
    this.#traffic = traffic
    this.#savedAtMs = clock.now()
  }

  /** Adds what has come since the last time. */
  save(): void {
    const now = this.#clock.now()
    const { requestsMoved, tokensMismatched } = this.#traffic()
    this.#add({
      requests_moved: requestsMoved - this.#saved.requestsMoved,
      tokens_mismatched: tokensMismatched - this.#saved.tokensMismatched,
      elapsed_ms: now - this.#savedAtMs,
    })
    this.#saved = { requestsMoved, tokensMismatched }
    this.#savedAtMs = now
  }

  /** What a full disk does not take is added with what comes next. */
  #add(amounts: Readonly<Record<string, number>>): void {
    for (const [name, amount] of Object.entries(amounts)) {
      this.#pending.set(name, (this.#pending.get(name) ?? 0) + amount)
    }
    try {
      for (const [name, amount] of this.#pending) {
        this.#counters.add({ [name]: amount })
        this.#pending.delete(name)
      }
    } catch (error) {
      if (!isDiskTrouble(error)) throw error
    }
  }

  see(event: ControllerEvent): void {
    if (event.kind === 'role-transfer') {
      const isLive = event.to === 'training' && event.liveExecutions > 0
      this.#add({
        role_transfers: 1,
        live_role_transfers: isLive ? 1 : 0,
        tokens_handed_over: event.tokensHandedOver,
      })
    }
    if (event.kind === 'execution-cut') this.#add({ executions_cut: 1 })
    if (event.kind === 'standalone-failed') this.#add({ standalone_failures: 1 })
    if (event.kind === 'cell-failed') this.#add({ cell_restarts: 1 })
    if (event.kind === 'execution-finished' || event.kind === 'checkpoint') this.save()
  }
}
