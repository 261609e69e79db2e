/**
 * @file How long a micro-step may take before its cell counts as slow, from how long micro-steps took.
 *
 * patience = max(FLOOR, FACTOR x median(time per token) x tokens), once there is something to compare with.
 */

/**
 * An estimate with room, not a measurement: per token, a full context may cost about 4x a short one (attention grows
 * with it), and neighbours on the same cores about 2x. A healthy cell stays within 8x; one that swaps, is throttled or
 * starved goes far beyond. It errs towards patience: `trainMs` still bounds every micro-step.
 */
const FACTOR = 10
/**
 * Shorter waits are noise: a collection of garbage, the first pass of a fresh process, a burst of harnesses on the same
 * cores. Failing a cell costs its restart, a second or more, so little is won below it. [ms]
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
