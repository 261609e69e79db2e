/**
 * @file Time that passes only when everything else has come to rest.
 *
 * A history has one queue of what is to happen, in order of time and, at the same time, of asking. After each entry
 * every promise it settled runs out before the next, so the same seed gives the same history to the last step. While
 * a history runs, the timers and clocks of the process itself are this queue: product code needs no change to be in it.
 */
import type { Clock, Timers } from '../../src/core/clock.ts'

const realImmediate = setImmediate
const drained = (): Promise<void> =>
  new Promise((resolve) => {
    realImmediate(resolve)
  })

/** What can die, hang and be late on its own: a process. Everything it began belongs to it. */
export class Domain {
  readonly name: string
  isAlive = true
  /** Nothing of it runs before this time; Infinity hangs it until it is killed. [ms] */
  pausedUntilMs = 0
  readonly #deathListeners: (() => void)[] = []

  constructor(name: string) {
    this.name = name
  }

  /** Like kill -9: whatever it still had to do is never done. */
  kill(): void {
    if (!this.isAlive) return
    this.isAlive = false
    for (const listener of this.#deathListeners.splice(0)) listener()
  }

  /** What the world outside notices of its death. */
  onDeath(listener: () => void): void {
    this.#deathListeners.push(listener)
  }
}

interface Entry {
  atMs: number
  readonly order: number
  readonly domain: Domain
  readonly action: () => void
  readonly isTimer: boolean
  isDone: boolean
}

export class VirtualTime implements Clock, Timers {
  readonly world = new Domain('world')
  #nowMs = 0
  #order = 0
  #current: Domain = this.world
  readonly #queue = new Queue()
  /** Entries that ran. */
  events = 0

  now(): number {
    return this.#nowMs
  }

  /** Whose turn it is. */
  get current(): Domain {
    return this.#current
  }

  after(delayMs: number, action: () => void): () => void {
    const entry = this.#push(this.#current, delayMs, action, true)
    return () => {
      entry.isDone = true
    }
  }

  /** Something that reaches `domain` from outside, unless it is dead by then. */
  deliver(domain: Domain, delayMs: number, action: () => void): void {
    this.#push(domain, delayMs, action, false)
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.after(ms, resolve)
    })
  }

  /** Runs `work` as if `domain` did it. */
  within<T>(domain: Domain, work: () => T): T {
    const outer = this.#current
    this.#current = domain
    try {
      return work()
    } finally {
      this.#current = outer
    }
  }

  /** When the timers of a domain that have not run are due: what it would leave behind. [ms] */
  pendingTimers(domain: Domain): readonly number[] {
    const left = this.#queue.entries.filter((e) => e.isTimer && !e.isDone && e.domain === domain)
    return left.map((e) => e.atMs).sort((a, b) => a - b)
  }

  /** @returns whether `isOver` came true; false when nothing was left to happen, or the time was up. */
  async run(isOver: () => boolean, limitMs: number): Promise<boolean> {
    const restore = this.#takeOver()
    try {
      await drained()
      while (!isOver()) {
        const entry = this.#queue.pop()
        if (entry === undefined || entry.atMs > limitMs) return false
        if (this.#isPutOff(entry)) continue
        this.#nowMs = Math.max(this.#nowMs, entry.atMs)
        this.#current = entry.domain
        this.events++
        entry.isDone = true
        entry.action()
        await drained()
        this.#current = this.world
      }
      return true
    } finally {
      restore()
    }
  }

  #isPutOff(entry: Entry): boolean {
    if (entry.isDone || !entry.domain.isAlive) return true
    const { pausedUntilMs } = entry.domain
    if (pausedUntilMs <= Math.max(this.#nowMs, entry.atMs)) return false
    // A process that hangs for ever keeps its entries, and never comes to them.
    if (pausedUntilMs !== Number.POSITIVE_INFINITY) {
      entry.atMs = pausedUntilMs
      this.#queue.push(entry)
    }
    return true
  }

  #push(domain: Domain, delayMs: number, action: () => void, isTimer: boolean): Entry {
    // Whole fractions of a millisecond, rounded up: sums are exact, and no timer is early by a rounding error.
    const atMs = this.#nowMs + Math.ceil(Math.max(0, Number.isFinite(delayMs) ? delayMs : 0) * 1024) / 1024
    const entry: Entry = { atMs, order: this.#order++, domain, action, isTimer, isDone: !domain.isAlive }
    if (!entry.isDone) this.#queue.push(entry)
    return entry
  }

  /** Global timers and clocks are this one's until the returned function is called. */
  #takeOver(): () => void {
    const { setTimeout: realSet, clearTimeout: realClear } = globalThis
    const { now: realNow } = Date
    // A history throws thousands of errors that nobody reads the stack of.
    const { stackTraceLimit } = Error
    Error.stackTraceLimit = 0
    const realTimeout = AbortSignal.timeout.bind(AbortSignal)
    const set = (action: (...args: unknown[]) => void, delayMs = 0, ...args: unknown[]): VirtualTimer =>
      new VirtualTimer(this, delayMs, () => action(...args))
    globalThis.setTimeout = set as unknown as typeof setTimeout
    globalThis.clearTimeout = ((timer?: VirtualTimer) => timer?.cancel()) as unknown as typeof clearTimeout
    Date.now = () => this.#nowMs
    Object.defineProperty(performance, 'now', { value: () => this.#nowMs, configurable: true, writable: true })
    AbortSignal.timeout = (delayMs) => {
      const controller = new AbortController()
      this.deliver(this.#current, delayMs, () => controller.abort(new DOMException('too late', 'TimeoutError')))
      return controller.signal
    }
    return () => {
      globalThis.setTimeout = realSet
      globalThis.clearTimeout = realClear
      Date.now = realNow
      Error.stackTraceLimit = stackTraceLimit
      AbortSignal.timeout = realTimeout
      Reflect.deleteProperty(performance, 'now')
    }
  }
}

/** What setTimeout gives here; as much of a NodeJS.Timeout as anyone uses. */
class VirtualTimer {
  readonly #time: VirtualTime
  readonly #delayMs: number
  readonly #action: () => void
  #cancel: () => void

  constructor(time: VirtualTime, delayMs: number, action: () => void) {
    this.#time = time
    this.#delayMs = delayMs
    this.#action = action
    this.#cancel = time.after(delayMs, action)
  }

  cancel(): void {
    this.#cancel()
  }

  refresh(): this {
    this.#cancel()
    this.#cancel = this.#time.after(this.#delayMs, this.#action)
    return this
  }

  ref(): this {
    return this
  }

  unref(): this {
    return this
  }

  hasRef(): boolean {
    return true
  }
}

const isBefore = (a: Entry, b: Entry): boolean => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order)

/** A binary heap. */
class Queue {
  readonly entries: Entry[] = []

  push(entry: Entry): void {
    const { entries } = this
    let at = entries.push(entry) - 1
    while (at > 0) {
      const parent = (at - 1) >> 1
      if (!isBefore(entry, entries[parent] as Entry)) break
      entries[at] = entries[parent] as Entry
      at = parent
    }
    entries[at] = entry
  }

  pop(): Entry | undefined {
    const { entries } = this
    const [first] = entries
    const last = entries.pop()
    if (first === undefined || last === undefined || entries.length === 0) return first
    let at = 0
    for (;;) {
      const left = 2 * at + 1
      if (left >= entries.length) break
      const right = left + 1
      const isRight = right < entries.length && isBefore(entries[right] as Entry, entries[left] as Entry)
      const child = isRight ? right : left
      if (!isBefore(entries[child] as Entry, last)) break
      entries[at] = entries[child] as Entry
      at = child
    }
    entries[at] = last
    return first
  }
}
