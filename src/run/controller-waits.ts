/** @file Every wait of the controller: deadlines, pauses and alarms, on timers it is given, all ended with it. */
import type { Timers } from '../core/clock.ts'
import { GyreError } from '../core/errors.ts'

const NOTHING = (): void => undefined

export class Waits {
  readonly #timers: Timers
  /** What ends each wait under way before its time. */
  readonly #underway = new Set<() => void>()
  #isClosed = false

  constructor(timers: Timers) {
    this.#timers = timers
  }

  /**
   * Ends with E_CELL_TIMEOUT when `promise` takes longer. A late result is dropped.
   * @param what completes "... did not end".
   */
  async within<T>(promise: Promise<T>, deadlineMs: number, what: string): Promise<T> {
    let cancel: (() => void) | undefined
    const deadline = new Promise<never>((_, reject) => {
      cancel = this.#timers.after(deadlineMs, () => {
        const message = `${what} did not end within ${Math.round(deadlineMs)} ms`
        reject(new GyreError(message, { boundary: 'cell', code: 'E_CELL_TIMEOUT', retryable: true }))
      })
    })
    try {
      return await Promise.race([promise, deadline])
    } finally {
      cancel?.()
    }
  }

  /** Resolves after so long, or at once when the controller ends. [ms] */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#start(delayMs, resolve, resolve)
    })
  }

  /** Calls `action` once after so long, unless the controller ends before. [ms] */
  alarm(delayMs: number, action: () => void): void {
    this.#start(delayMs, action, NOTHING)
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  /** Ends every pause, drops every alarm, and lets none begin. Deadlines go on: what they guard is still under way. */
  close(): void {
    this.#isClosed = true
    for (const end of this.#underway) end()
  }

  #start(delayMs: number, action: () => void, onClose: () => void): void {
    if (this.#isClosed) {
      onClose()
      return
    }
    const end = (): void => {
      cancel()
      this.#underway.delete(end)
      onClose()
    }
    const cancel = this.#timers.after(Math.max(0, delayMs), () => {
      this.#underway.delete(end)
      action()
    })
    this.#underway.add(end)
  }
}
