/** @file Writing to the books while the disk is full: what cannot be recorded waits, up to a deadline. */
import { setTimeout as sleep } from 'node:timers/promises'
import { GyreError } from '../core/errors.ts'

/** A person has to free the space. [ms] */
const PATIENCE_MS = 30 * 60_000
const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 10_000

/**
 * The result of `write`, which is tried again while the disk is full or the file is locked. It must be all or nothing.
 * @param stop ends the waiting, with the last error.
 * @throws what `write` threw last.
 */
export async function patiently<T>(write: () => T, stop: AbortSignal): Promise<T> {
  const endsAt = performance.now() + PATIENCE_MS
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
    try {
      return write()
    } catch (error) {
      if (!isDiskTrouble(error) || stop.aborted || performance.now() > endsAt) throw error
    }
    await sleep(pauseMs, undefined, { signal: stop }).catch(() => undefined)
  }
}

/** Nothing was written, and the same may succeed later. */
export function isDiskTrouble(error: unknown): boolean {
  return error instanceof GyreError && (error.code === 'E_STORE_DISK' || error.code === 'E_STORE_BUSY')
}
