/** @file Every wait of the controller: deadlines, pauses and alarms, on a clock and timers it is given. */
import type { Clock, Timers } from '../core/clock.ts'
import { GyreError } from '../core/errors.ts'

/** A timer that fires so much too late says that this process could not listen: answers may lie unread. [ms] */
const LATE_MS = 100
/** How long they are read before the deadline counts: a turn of the event loop takes far less. [ms] */
const CATCH_UP_MS = 250
/** Longest single timer: longer delays overflow what a host's timers hold. [ms] */
const LONGEST_MS = 24 * 3_600_000

const NOTHING = (): void => undefined

export class Waits {
  readonly #clock: Clock
  readonly #timers: Timers
  /** What ends each pause and alarm before its time. */
  readonly #underway = new Set<() => void>()
  readonly #end = new AbortController()

  constructor(clock: Clock, timers: Timers) {
    this.#clock = clock
    this.#timers = timers
  }

  /** Aborts when the controller ends. */
  get ended(): AbortSignal {
    return this.#end.signal
  }

  /**
   * Ends with E_CELL_TIMEOUT when `promise` takes longer. A late result is dropped.
   * @param what completes "... did not end".
   */
  async within<T>(promise: Promise<T>, deadlineMs: number, what: string): Promise<T> {
    let cancel = NOTHING
    const deadline = new Promise<never>((_, reject) => {
      const pass = (): void => {
        const message = `${what} did not end within ${Math.round(deadlineMs)} ms`
        reject(new GyreError(message, { boundary: 'cell', code: 'E_CELL_TIMEOUT', retryable: true }))
      }
      const dueMs = this.#clock.now() + deadlineMs
      cancel = this.#timers.after(deadlineMs, () => {
        if (this.#clock.now() - dueMs < LATE_MS) pass()
        else cancel = this.#timers.after(CATCH_UP_MS, pass)
      })
    })
    try {
      return await Promise.race([promise, deadline])
    } finally {
      cancel()
    }
  }

  /** The same for work that can be told to end: its signal aborts with the deadline, and with the controller. */
  async stoppable<T>(work: (signal: AbortSignal) => Promise<T>, deadlineMs: number, what: string): Promise<T> {
    const stop = new AbortController()
    try {
      return await this.within(work(AbortSignal.any([stop.signal, this.ended])), deadlineMs, what)
    } finally {
      stop.abort()
    }
  }

  /** Resolves after so long, or at once when the controller ends. [ms] */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#start(this.#clock.now() + delayMs, resolve, resolve)
    })
  }

  /** Calls `action` once at this time or later, unless the controller ends before. [ms] */
  alarm(atMs: number, action: () => void): void {
    this.#start(atMs, action, NOTHING)
  }

  /** Ends every pause, drops every alarm, lets none begin. Deadlines stay: what they guard is still under way. */
  close(): void {
    this.#end.abort()
    for (const end of this.#underway) end()
  }

  #start(atMs: number, action: () => void, onClose: () => void): void {
    if (this.ended.aborted) {
      onClose()
      return
    }
    const delayMs = Math.min(LONGEST_MS, Math.max(0, atMs - this.#clock.now()))
    const cancel = this.#timers.after(delayMs, () => {
      this.#underway.delete(end)
      // Timers may be a fraction early, and long delays come in parts.
      if (this.#clock.now() < atMs) this.#start(atMs, action, onClose)
      else action()
    })
    const end = (): void => {
      cancel()
      this.#underway.delete(end)
      onClose()
    }
    this.#underway.add(end)
  }
}
