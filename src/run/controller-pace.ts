/**
 * @file How long a micro-step may take before its cell counts as slow, from how long micro-steps took.
 *
 * patience = max(FLOOR, FACTOR x median(time per token) x tokens), once there is something to compare with.
 */

/**
 * Between the cheapest and the dearest token of one run lie about 4x (attention grows with the context: measured per
 * token, a full context against a short one) and about 2x by neighbours (cells that share the cores of one machine). A
 * healthy cell stays within 8x; one in swap, throttled or starved is beyond 10x.
 */
const FACTOR = 10
/**
 * Shorter waits are noise: a collection of garbage, the first pass of a fresh process, a burst of harnesses on the same
 * cores. Failing a cell costs a restart of about a second, so nothing is won below it. [ms]
 */
const FLOOR_MS = 5000
/** A median of fewer says nothing; more than the last ones are of other lengths and other neighbours. [micro-steps] */
const FEWEST = 8
const WINDOW = 32

export class MicroStepPace {
  /** Newest last. [ms per token] */
  readonly #recent: number[] = []

  saw(tokens: number, durationMs: number): void {
    if (tokens <= 0) return
    this.#recent.push(durationMs / tokens)
    if (this.#recent.length > WINDOW) this.#recent.shift()
  }

  /** Usual time of a micro-step of so many tokens; undefined while too few were seen. [ms] */
  usualMs(tokens: number): number | undefined {
    if (this.#recent.length < FEWEST) return undefined
    const sorted = this.#recent.toSorted((a, b) => a - b)
    return (sorted[Math.floor(sorted.length / 2)] ?? 0) * tokens
  }

  /** [ms]; `atMostMs` while too few were seen. */
  patienceMs(tokens: number, atMostMs: number): number {
    const usual = this.usualMs(tokens)
    return usual === undefined ? atMostMs : Math.min(atMostMs, Math.max(FLOOR_MS, FACTOR * usual))
  }
}
