/**
 * @file Training verbs of a cell: one at a time, in the order of arrival, each key once.
 *
 * A key is remembered as long as the effect of its work is in the state: keys of gradients until the
 * accumulator is dropped, keys of optimizer steps until the weights are replaced.
 */
import { GyreError } from '../core/errors.ts'
import type { Deadline } from './deadline.ts'

/** Keys remembered per kind of work; the oldest finished ones go first. */
const MAX_KEYS = 1024

interface Entry {
  /** Digest of the request, to tell a repetition from a reused key. */
  readonly digest: string
  readonly result: Promise<unknown>
  isDone: boolean
  hasStarted: boolean
}

/** One at a time, in the order of the calls. A failure does not stop those that follow. */
export class Serial {
  #tail: Promise<unknown> = Promise.resolve()

  run<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#tail.then(work)
    this.#tail = turn.catch(() => undefined)
    return turn
  }
}

export class WorkQueue {
  readonly #serial = new Serial()
  readonly #keys = new Map<string, Map<string, Entry>>()

  /**
   * Runs `work` after everything queued before it; work whose turn comes after its deadline is not begun.
   * @throws GyreError E_CELL_TIMEOUT
   */
  async run<T>(deadline: Deadline, work: () => Promise<T>): Promise<T> {
    let hasStarted = false
    const turn = this.#serial.run(async () => {
      if (deadline.remainingMs() === 0) throw deadline.error(false)
      hasStarted = true
      return work()
    })
    return deadline.wait(turn, () => hasStarted)
  }

  /**
   * As `run`, once per key: a repetition waits for the first delivery and gets its result.
   * Work that failed is forgotten, so that it can be repeated.
   * @throws GyreError E_CELL_KEY_CONFLICT when the key came with another request before.
   */
  async runOnce<T>(kind: string, key: string, digest: string, deadline: Deadline, work: () => Promise<T>): Promise<T> {
    const entries = this.#entriesOf(kind)
    const known = entries.get(key)
    if (known !== undefined && known.digest !== digest) throw keyConflict(kind, key)
    const entry = known ?? this.#enter(entries, key, digest, deadline, work)
    return (await deadline.wait(entry.result, () => entry.hasStarted)) as T
  }

  /** Forgets the finished work of a kind, or some of it; its effect is gone from the state. */
  forget(kind: string, keys?: readonly string[]): void {
    const entries = this.#entriesOf(kind)
    for (const key of keys ?? entries.keys()) if (entries.get(key)?.isDone === true) entries.delete(key)
  }

  #entriesOf(kind: string): Map<string, Entry> {
    const entries = this.#keys.get(kind) ?? new Map<string, Entry>()
    this.#keys.set(kind, entries)
    return entries
  }

  #enter<T>(
    entries: Map<string, Entry>,
    key: string,
    digest: string,
    deadline: Deadline,
    work: () => Promise<T>,
  ): Entry {
    const result = this.#serial.run(async () => {
      if (deadline.remainingMs() === 0) throw deadline.error(false)
      entry.hasStarted = true
      const value = await work()
      entry.isDone = true
      return value
    })
    const entry: Entry = { digest, result, isDone: false, hasStarted: false }
    entries.set(key, entry)
    result.catch(() => entries.get(key) === entry && entries.delete(key))
    if (entries.size > MAX_KEYS) {
      for (const [old, { isDone }] of entries) {
        if (!isDone) continue
        entries.delete(old)
        break
      }
    }
    return entry
  }
}

function keyConflict(kind: string, key: string): GyreError {
  return new GyreError(`the idempotency key "${key}" of ${kind} was used before for a different request`, {
    boundary: 'cell',
    code: 'E_CELL_KEY_CONFLICT',
  })
}
