/** @file Decides, call by call, what goes wrong, and counts what really did. */
import { hashSeed, seededRng } from '../../src/core/rng.ts'
import type { Rng } from '../../src/core/rng.ts'
import type { Plan, Rates, Verb } from './plan.ts'
import type { VirtualTime } from './virtual-time.ts'

/** What becomes of one call: `reset` is told to the caller, `silent` is not. */
export type Fate =
  | 'fine'
  | 'request-lost-reset'
  | 'request-lost-silent'
  | 'answer-lost-reset'
  | 'answer-lost-silent'
  /** The first answer is lost and the call is made again under its key. */
  | 'repeated'

export interface HarnessFate {
  readonly calls: readonly { readonly length: number; readonly toolMs: number }[]
  readonly end: 'exit' | 'crash' | 'hang'
  readonly ignoresSignalMs: number
  readonly sandboxFails: boolean
  readonly launchFails: boolean
  readonly scoreMs: number
  /** Evaluations that fail before one succeeds. */
  readonly scoreFailures: number
  readonly scoreHangs: boolean
}

export class Chaos {
  readonly #plan: Plan
  readonly #time: VirtualTime
  readonly #network: Rng
  readonly #asked = new Map<string, number>()
  /** Kind of fault -> times it took effect. */
  readonly coverage = new Map<string, number>()
  diskFullUntilMs = 0
  /** No execution is failed by its surroundings before one has worked: a run that only ever fails is ended, rightly. */
  hasWorked = false

  constructor(plan: Plan, time: VirtualTime) {
    this.#plan = plan
    this.#time = time
    this.#network = seededRng(hashSeed('network', plan.seed))
  }

  count(what: string): void {
    this.coverage.set(what, (this.coverage.get(what) ?? 0) + 1)
  }

  get isQuiet(): boolean {
    return this.#time.now() >= this.#plan.quietFromMs
  }

  /** One way between two processes. [ms] */
  latency(): number {
    return 0.5 + this.#network.next() * 3
  }

  /** How much longer a request is on its way than others. [ms] */
  lateness(): number {
    const draw = this.#network.next()
    const delayMs = 20 + this.#network.below(500)
    if (this.isQuiet || draw >= this.#plan.rates.late) return 0
    this.count('late')
    return delayMs
  }

  /** @param isKeyed a repeated delivery counts once. */
  fate(isKeyed: boolean): Fate {
    const draw = this.#network.next()
    const silence = this.#network.next()
    if (this.isQuiet) return 'fine'
    const { requestLost, answerLost, silent, repeated } = this.#plan.rates
    const how = silence < silent ? 'silent' : 'reset'
    if (draw < requestLost) return this.#counted(`request-lost-${how}` as const)
    if (draw < requestLost + answerLost) return this.#counted(`answer-lost-${how}` as const)
    return isKeyed && draw < requestLost + answerLost + repeated ? this.#counted('repeated' as const) : 'fine'
  }

  /** After how many events a stream breaks; undefined when it does not. */
  breaksAfter(): number | undefined {
    const draw = this.#network.next()
    const events = this.#network.below(4)
    if (this.isQuiet || draw >= this.#plan.rates.streamBroken) return undefined
    this.count('stream-broken')
    return events
  }

  crash(machine: string, verb: Verb, when: 'before' | 'after'): boolean {
    const key = `${machine}/${verb}/${when}`
    const nth = (this.#asked.get(key) ?? 0) + 1
    this.#asked.set(key, nth)
    if (this.isQuiet) return false
    const isDue = this.#plan.crashes.some(
      (c) => `cell-${c.cell}` === machine && c.verb === verb && c.when === when && c.nth === nth,
    )
    if (isDue) {
      this.count(`crash-${when}`)
      this.count(`crash ${when} ${verb}`)
    }
    return isDue
  }

  restart(): 'fine' | 'fails' | 'hangs' {
    const draw = this.#network.next()
    if (this.isQuiet) return 'fine'
    const { restartFails, restartHangs } = this.#plan.rates
    if (draw < restartFails) return this.#counted('fails' as const, 'restart-failed')
    return draw < restartFails + restartHangs ? this.#counted('hangs' as const, 'restart-hung') : 'fine'
  }

  isDiskFull(): boolean {
    const isFull = this.#time.now() < this.diskFullUntilMs
    if (isFull) this.count('disk-full')
    return isFull
  }

  /** The same for the same execution, whatever happened before. */
  harness(executionId: string): HarnessFate {
    const rng = seededRng(hashSeed('harness', this.#plan.seed, executionId))
    const chance = (name: keyof Rates): boolean => {
      const isDue = rng.next() < this.#plan.rates[name]
      return isDue && !this.isQuiet && this.hasWorked
    }
    const calls = Array.from({ length: 1 + rng.below(3) }, () => ({
      length: rng.below(6) === 0 ? 15 + rng.below(25) : 2 + rng.below(6),
      toolMs: rng.below(8) === 0 ? 200 + rng.below(600) : 3 + rng.below(40),
    }))
    const isHung = chance('harnessHang')
    const isCrashed = chance('harnessCrash')
    return {
      calls,
      end: isHung ? 'hang' : isCrashed ? 'crash' : 'exit',
      ignoresSignalMs: chance('ignoresSignal') ? 50 + rng.below(400) : 0,
      sandboxFails: chance('sandbox'),
      launchFails: chance('launch'),
      scoreMs: 5 + rng.below(60),
      scoreFailures: chance('score') ? 1 + rng.below(3) : 0,
      scoreHangs: chance('scoreHang'),
    }
  }

  #counted<T extends string>(fate: T, name: string = fate): T {
    this.count(name)
    return fate
  }
}
