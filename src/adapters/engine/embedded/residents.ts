/**
 * @file Sequences whose key-value cache is in memory, running or not, and the pages they share.
 *
 * Invariants: the first `computed` tokens of a resident are in its pages, under the present weights; a page that has
 * two holders is full and never written again; the pages of all running residents always fit, because the pool holds
 * a whole context for each, and everybody else gives way.
 */
import { invariant } from '../../../core/errors.ts'
import type { Machine } from '../../../kernels/machine.ts'
import { copyPage } from '../../../kernels/pages.ts'
import { TILE } from '../../../kernels/plan.ts'
import type { PagePool } from './page-pool.ts'

export interface Resident {
  /** Who used it last. */
  executionId: string
  /** [maxContext]; the first `length` are known, the first `computed` are in the cache. */
  readonly tokens: Int32Array
  length: number
  computed: number
  readonly pages: number[]
  /** Running residents are never evicted. */
  isRunning: boolean
  /** Order of admission; the smallest idle one is evicted first. */
  lastUse: number
}

/** A resident with the longest common beginning with a prompt. */
export interface Prefix {
  readonly resident: Resident | undefined
  /** In its cache now. [tokens] */
  readonly computed: number
  /** What running prefills will have soon. [tokens] */
  readonly soon: number
}

/** Idle residents kept for each slot: conversations that wait for a tool. */
const IDLE_PER_SLOT = 4

export class Residents {
  readonly #m: Machine
  readonly #pool: PagePool
  /** Others who hold pages let go of some, and say whether they did. */
  readonly #giveWay: () => boolean
  readonly #limit: number
  #all: Resident[] = []
  #uses = 0

  constructor(m: Machine, pool: PagePool, giveWay: () => boolean) {
    this.#m = m
    this.#pool = pool
    this.#giveWay = giveWay
    this.#limit = m.plan.capacity.slots * (1 + IDLE_PER_SLOT)
  }

  /** At least one token of a prompt is left to compute, because its output is needed. */
  find(promptIds: Int32Array): Prefix {
    let resident: Resident | undefined
    let computed = 0
    let soon = 0
    for (const r of this.#all) {
      const known = commonLength(r.tokens, promptIds, Math.min(r.length, promptIds.length - 1))
      if (r.isRunning) soon = Math.max(soon, known)
      const ready = Math.min(known, r.computed)
      // Of equals the one that would lose least by going on in place.
      if (ready > computed || (ready === computed && ready > 0 && isWhole(r, ready))) {
        resident = r
        computed = ready
      }
    }
    return { resident, computed, soon }
  }

  /** Starts a sequence on what `prefix` has of it: in place when nothing is lost by that, else sharing its full pages. */
  start(executionId: string, promptIds: Int32Array, { resident, computed }: Prefix): Resident {
    const isInPlace = resident !== undefined && isWhole(resident, computed)
    const started = isInPlace ? this.#goOn(resident, computed) : this.#fork(resident, computed)
    started.executionId = executionId
    started.tokens.set(promptIds)
    started.length = promptIds.length
    started.isRunning = true
    started.lastUse = ++this.#uses
    return started
  }

  /** Keeps the first `computed` tokens; the page that is written next becomes its own. */
  #goOn(r: Resident, computed: number): Resident {
    r.isRunning = true
    r.computed = computed
    this.#pool.release(r.pages.splice(Math.ceil(computed / TILE)))
    const last = r.pages.at(-1)
    if (computed % TILE === 0 || last === undefined || this.#pool.holdersOf(last) === 1) return r
    this.#pool.release([r.pages.pop() ?? 0])
    this.#copyTail(r, last)
    return r
  }

  #fork(source: Resident | undefined, computed: number): Resident {
    const fork = this.#enter(computed, true)
    if (source !== undefined) {
      source.lastUse = ++this.#uses
      const whole = Math.floor(computed / TILE)
      fork.pages.push(...source.pages.slice(0, whole))
      this.#pool.share(fork.pages)
      const partial = source.pages[whole]
      if (computed % TILE > 0 && partial !== undefined) this.#copyTail(fork, partial)
    }
    while (this.#all.length > this.#limit && this.#evictOne());
    return fork
  }

  #enter(computed: number, isRunning: boolean): Resident {
    const tokens = new Int32Array(this.#m.plan.capacity.maxContext)
    const entered: Resident = { executionId: '', tokens, length: 0, computed, pages: [], isRunning, lastUse: 0 }
    this.#all.push(entered)
    return entered
  }

  /** What is cached of an execution: the running ones first, then the most recent. */
  of(executionId: string): readonly Resident[] {
    const own = this.#all.filter((r) => r.executionId === executionId && r.computed >= TILE)
    return own.toSorted((a, b) => Number(b.isRunning) - Number(a.isRunning) || b.lastUse - a.lastUse)
  }

  /** Whole pages of the longest beginning of `tokenIds` that is in the cache. */
  prefixPages(tokenIds: Int32Array): readonly number[] {
    let best: readonly number[] = []
    for (const r of this.#all) {
      const common = commonLength(r.tokens, tokenIds, Math.min(r.computed, tokenIds.length))
      const whole = Math.floor(common / TILE)
      if (whole > best.length) best = r.pages.slice(0, whole)
    }
    return best
  }

  /** Takes over pages that the caller holds, and which have the cache of `tokenIds`, as an idle sequence. */
  adopt(executionId: string, tokenIds: Int32Array, pages: readonly number[]): void {
    const adopted = this.#enter(tokenIds.length, false)
    adopted.executionId = executionId
    adopted.tokens.set(tokenIds)
    adopted.length = tokenIds.length
    adopted.pages.push(...pages)
    adopted.lastUse = ++this.#uses
    while (this.#all.length > this.#limit && this.#evictOne());
  }

  /** Evicts idle sequences until `pages` are free. @returns false, without evicting any, when that cannot be. */
  makeRoom(pages: number): boolean {
    const idle = new Map<number, number>()
    for (const r of this.#all) {
      if (!r.isRunning) for (const page of r.pages) idle.set(page, (idle.get(page) ?? 0) + 1)
    }
    const reclaimable = [...idle].filter(([page, holders]) => holders === this.#pool.holdersOf(page)).length
    if (this.#pool.free + reclaimable < pages) return false
    while (this.#pool.free < pages && this.#evictOne());
    return true
  }

  /** Appends a copy of a partly filled page. Taking the page may evict its owner, but nothing is written before the copy. */
  #copyTail(r: Resident, partial: number): void {
    const page = this.#takePage()
    if (page !== partial) copyPage(this.#m, partial, page)
    r.pages.push(page)
  }

  /** Makes room for the cache of the first `tokens` tokens. */
  reserve(r: Resident, tokens: number): void {
    while (r.pages.length * TILE < tokens) r.pages.push(this.#takePage())
  }

  /** Forgets what every cache holds; tokens of running residents stay, to be computed again. */
  drop(): void {
    for (const r of this.#all) this.#release(r)
    this.#all = this.#all.filter((r) => r.isRunning)
  }

  #takePage(): number {
    while (this.#pool.free === 0 && (this.#evictOne() || this.#giveWay()));
    const page = this.#pool.take()
    invariant(page !== undefined, 'the page pool holds every running sequence')
    return page
  }

  #evictOne(): boolean {
    const idle = this.#all.filter((r) => !r.isRunning)
    const oldest = idle.reduce<Resident | undefined>(
      (a, b) => (a !== undefined && a.lastUse < b.lastUse ? a : b),
      undefined,
    )
    if (oldest === undefined) return false
    this.#release(oldest)
    this.#all = this.#all.filter((r) => r !== oldest)
    return true
  }

  #release(r: Resident): void {
    this.#pool.release(r.pages.splice(0))
    r.computed = 0
  }
}

/** True when going on after `computed` tokens in place loses at most one computed token. */
function isWhole(r: Resident, computed: number): boolean {
  return !r.isRunning && r.computed - computed <= 1
}

function commonLength(a: Int32Array, b: Int32Array, limit: number): number {
  let n = 0
  while (n < limit && a[n] === b[n]) n++
  return n
}
