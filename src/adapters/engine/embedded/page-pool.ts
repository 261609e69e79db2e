/**
 * @file Which pages of the cache are free, and how many hold on to each: residents, pins, arrivals.
 *
 * Invariant: a page is free exactly when nobody holds it.
 */
export class PagePool {
  readonly #free: number[]
  readonly #holders: Int32Array

  constructor(pages: number) {
    this.#free = Array.from({ length: pages }, (_, i) => pages - 1 - i)
    this.#holders = new Int32Array(pages)
  }

  /** [pages] */
  get free(): number {
    return this.#free.length
  }

  /** A free page, held once; undefined when there is none. */
  take(): number | undefined {
    const page = this.#free.pop()
    if (page !== undefined) this.#holders[page] = 1
    return page
  }

  /** Holds pages that somebody holds already. */
  share(pages: readonly number[]): void {
    for (const page of pages) this.#holders[page] = (this.#holders[page] ?? 0) + 1
  }

  holdersOf(page: number): number {
    return this.#holders[page] ?? 0
  }

  release(pages: readonly number[]): void {
    for (const page of pages) {
      const holders = (this.#holders[page] ?? 1) - 1
      this.#holders[page] = holders
      if (holders === 0) this.#free.push(page)
    }
  }
}
