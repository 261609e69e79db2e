import type { Store } from '../ports/store.ts'

/** Totals over all attempts of a run, kept in the store. */
export class RunCounters {
  readonly #store: Store

  constructor(store: Store) {
    this.#store = store
  }

  value(name: string): number {
    return Number(this.#store.getMeta(`count-${name}`) ?? '0')
  }

  add(amounts: Readonly<Record<string, number>>): void {
    for (const [name, amount] of Object.entries(amounts)) {
      this.#store.setMeta(`count-${name}`, String(this.value(name) + amount))
    }
  }
}
