/** @file How long one call may take. Limits travel as durations, so clocks need not agree. */
import { GyreError } from '../core/errors.ts'

/** Longest delay a Node timer takes. [ms] */
const MAX_TIMER_MS = 2 ** 31 - 1

export class Deadline {
  /** What the call is about, for the message. */
  readonly what: string
  /** [ms] */
  readonly limitMs: number
  readonly #endsAt: number

  constructor(what: string, limitMs: number) {
    this.what = what
    this.limitMs = limitMs
    this.#endsAt = performance.now() + limitMs
  }

  /** [ms] 0 once it has passed. */
  remainingMs(): number {
    return Math.max(0, Math.min(MAX_TIMER_MS, this.#endsAt - performance.now()))
  }

  /** `started` says whether the cell had begun the work, in which case it goes on to its end. */
  error(started: boolean): GyreError {
    const state = started ? 'it had started and goes on' : 'it had not started and will not'
    return new GyreError(`${this.what} was not done within ${this.limitMs} ms: ${state}`, {
      boundary: 'cell',
      code: 'E_CELL_TIMEOUT',
      retryable: true,
      details: { started, limitMs: this.limitMs },
    })
  }

  /** Waits for the promise, but not past the deadline. @throws GyreError E_CELL_TIMEOUT */
  async wait<T>(promise: Promise<T>, hasStarted: () => boolean = () => true): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(this.error(hasStarted())), this.remainingMs())
    })
    try {
      return await Promise.race([promise, late])
    } finally {
      clearTimeout(timer)
    }
  }
}
