/**
 * @file Repeats the order of a recorded session: when each request meets the tree, and when each call is committed.
 *
 * A request may be sent once as many calls are committed as were when it was recorded; a call may end once it is its
 * turn and every request that came before its end has met the tree. So the tree grows as it did.
 */
import type { RecordedCall, RecordedExchange } from './format.ts'

export class ReplaySchedule {
  readonly #exchanges: readonly RecordedExchange[]
  readonly #calls: ReadonlyMap<number, RecordedCall>
  readonly #matched = new Set<number>()
  readonly #waiters = new Set<() => void>()
  #committed = 0

  constructor(exchanges: readonly RecordedExchange[], calls: readonly RecordedCall[]) {
    this.#exchanges = exchanges
    this.#calls = new Map(calls.map((call) => [call.call, call]))
  }

  /** In the order they are sent: by when they met the tree; refused ones before the next that arrived after them. */
  sendOrder(): readonly RecordedExchange[] {
    const order: RecordedExchange[] = this.#exchanges
      .filter((exchange) => exchange.match !== undefined)
      .toSorted((a, b) => (a.match?.order ?? 0) - (b.match?.order ?? 0))
    for (const refused of this.#exchanges.filter((exchange) => exchange.match === undefined)) {
      const next = order.findIndex((exchange) => exchange.arrival > refused.arrival)
      order.splice(next < 0 ? order.length : next, 0, refused)
    }
    return order
  }

  callOf(number: number): RecordedCall | undefined {
    return this.#calls.get(number)
  }

  noteMatched(exchange: RecordedExchange): void {
    this.#matched.add(exchange.arrival)
    this.#wake()
  }

  noteCommitted(): void {
    this.#committed++
    this.#wake()
  }

  async untilMaySend(exchange: RecordedExchange): Promise<void> {
    const before = exchange.match?.committedBefore ?? 0
    await this.#until(() => this.#committed >= before)
  }

  async untilMatched(exchange: RecordedExchange): Promise<void> {
    await this.#until(() => this.#matched.has(exchange.arrival))
  }

  /** A call without a record never ends by itself: it waits for the last of its requests. */
  async untilMayEnd(number: number): Promise<void> {
    const sequence = this.#calls.get(number)?.sequence
    await this.#until(() =>
      sequence === undefined ? this.#areMatched(({ match }) => match.call === number) : this.#mayCommit(sequence),
    )
  }

  #mayCommit(sequence: number): boolean {
    return this.#committed === sequence && this.#areMatched(({ match }) => match.committedBefore <= sequence)
  }

  #areMatched(which: (exchange: { readonly match: NonNullable<RecordedExchange['match']> }) => boolean): boolean {
    return this.#exchanges.every(
      ({ match, arrival }) => match === undefined || !which({ match }) || this.#matched.has(arrival),
    )
  }

  async #until(isTrue: () => boolean): Promise<void> {
    while (!isTrue()) {
      await new Promise<void>((resolve) => {
        this.#waiters.add(resolve)
      })
    }
  }

  #wake(): void {
    const waiters = [...this.#waiters]
    this.#waiters.clear()
    for (const wake of waiters) wake()
  }
}
