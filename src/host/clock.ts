/** @file The time of this machine, for everything that takes a clock or timers as an argument. */
import type { Clock, Timers } from '../core/clock.ts'

/** Milliseconds since the Unix epoch as they were at start, then monotonic: setting the wall clock moves no deadline. */
export const monotonicClock: Clock = { now: () => performance.timeOrigin + performance.now() }

export const realTimers: Timers = {
  after(delayMs, action) {
    const timer = setTimeout(action, delayMs)
    return () => clearTimeout(timer)
  },
}
