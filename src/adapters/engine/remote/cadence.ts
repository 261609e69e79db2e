/**
 * @file When the streams of this process are read again after a piece was handed out.
 *
 * The more streams there are, the longer each waits, up to a bound: so many pieces a second cost what they cost,
 * however many tokens they hold. Streams that wait equally long are woken together, which is cheaper than one by one.
 */

/** Added to the wait by each open stream, and the longest wait. Far below what a reader of the text notices. [ms] */
const [STREAM_MS, LONGEST_MS] = [2, 50]

export class Cadence {
  #streams = 0
  /** By the time they are due at. [ms] */
  readonly #waiting = new Map<number, (() => void)[]>()

  open(): void {
    this.#streams++
  }

  close(): void {
    this.#streams--
  }

  /** Calls back when a stream that was read just now may be read again. */
  afterWait(wake: () => void): void {
    const nowMs = performance.now()
    const beatMs = Math.min(LONGEST_MS, STREAM_MS * this.#streams)
    // The beat after the next half one, so that what one beat brought has time to be worked on.
    const dueMs = beatMs * Math.ceil(nowMs / beatMs + 0.5)
    const together = this.#waiting.get(dueMs)
    if (together !== undefined) {
      together.push(wake)
      return
    }
    this.#waiting.set(dueMs, [wake])
    setTimeout(() => this.#wake(dueMs), dueMs - nowMs)
  }

  #wake(dueMs: number): void {
    const together = this.#waiting.get(dueMs) ?? []
    this.#waiting.delete(dueMs)
    for (const wake of together) wake()
  }
}
