/**
 * @file One generation from its first token to its last, over as many engines as it takes.
 *
 * A generation is a chain of legs, one per engine visit. Tokens of a leg that was cancelled or lost stay valid:
 * the next leg's prompt ends in them, with the same seed and the rest of the token bound. The harness sees latency.
 */
import { GyreError } from '../core/errors.ts'
import type { EngineId, ExecutionId } from '../core/ids.ts'
import type { Engine, GenerateEvent, SamplingParams } from '../ports/engine.ts'
import { isTransient } from './faults.ts'
import type { RouteTable } from './routes.ts'

/** Engines report "no value" as a large negative number; a real log-prob is neither that nor positive. [nats] */
const LOGPROB_SENTINEL = -9999
const FIRST_PAUSE_MS = 50

export interface SamplerTimings {
  /** Longest pause between two tries on an engine that keeps failing. [ms] */
  readonly retryPauseMs: number
  /** How long an engine may take to stop after it was cancelled, before its leg is given up. [ms] */
  readonly cancelMs: number
}

/** What a generation has so far; equal lengths. */
export interface Sampled {
  readonly tokenIds: number[]
  /** NaN where the engine gave no evidence. [nats] */
  readonly logprobs: number[]
  readonly policyVersions: number[]
}

export interface Generation {
  readonly requestId: string
  readonly executionId: ExecutionId
  /** [T] */
  readonly promptIds: Int32Array
  readonly sampling: SamplingParams
  /** Aborts the whole generation: nobody wants its answer. */
  readonly signal: AbortSignal
  readonly sampled: Sampled
  readonly onTokens: (tokenIds: readonly number[]) => void
}

export interface GenerationEnd {
  readonly finishReason: 'stop' | 'length'
  /** Prompt tokens the first leg found cached. [tokens] */
  readonly cachedTokens: number
  readonly moves: number
}

interface Leg {
  readonly engineId: EngineId
  readonly cancel: () => void
  readonly ended: Promise<unknown>
}

type LegOutcome = { readonly kind: 'cancelled' } | { readonly kind: 'lost' } | GenerateEnd
type GenerateEnd = Extract<GenerateEvent, { kind: 'end' }>

export class Sampler {
  readonly #routes: RouteTable
  readonly #timings: SamplerTimings
  readonly #legs = new Set<Leg>()
  #held = 0

  constructor(routes: RouteTable, timings: SamplerTimings) {
    this.#routes = routes
    this.#timings = timings
  }

  /** Generations that wait for a route at the moment. */
  get held(): number {
    return this.#held
  }

  /** Cancels every leg on the engine and returns when none is left, with how many there were. */
  async cancel(engineId: EngineId): Promise<number> {
    const legs = [...this.#legs].filter((leg) => leg.engineId === engineId)
    for (const leg of legs) leg.cancel()
    await Promise.allSettled(legs.map(async (leg) => leg.ended))
    return legs.length
  }

  /** @throws whatever the engine threw that no other route can mend, or E_ENGINE_CANCELLED after `signal`. */
  async run(generation: Generation): Promise<GenerationEnd> {
    let moves = 0
    let cachedTokens: number | undefined
    let previous: EngineId | undefined
    let pauseMs = FIRST_PAUSE_MS
    for (;;) {
      const finished = finishedBy(generation)
      if (finished !== undefined) return { finishReason: finished, cachedTokens: cachedTokens ?? 0, moves }
      const engine = await this.#engineFor(generation)
      if (previous !== undefined && previous !== engine.id) moves++
      previous = engine.id
      const before = generation.sampled.tokenIds.length
      const outcome = await this.#visit(engine, generation)
      throwIfAborted(generation.signal)
      if (outcome.kind === 'end') {
        cachedTokens ??= Math.min(outcome.cachedTokens, generation.promptIds.length)
        return { finishReason: outcome.finishReason, cachedTokens, moves }
      }
      cachedTokens ??= 0
      if (outcome.kind === 'cancelled') continue
      if (generation.sampled.tokenIds.length > before) pauseMs = FIRST_PAUSE_MS
      await this.#routes.changed(generation.executionId, generation.signal, pauseMs)
      pauseMs = Math.min(pauseMs * 2, this.#timings.retryPauseMs)
    }
  }

  async #engineFor({ executionId, signal }: Generation): Promise<Engine> {
    for (;;) {
      throwIfAborted(signal)
      const engine = this.#routes.engineOf(executionId)
      if (engine !== undefined) return engine
      this.#held++
      await this.#routes.changed(executionId, signal).finally(() => this.#held--)
    }
  }

  async #visit(engine: Engine, generation: Generation): Promise<LegOutcome> {
    const controller = new AbortController()
    const onAbort = (): void => controller.abort()
    generation.signal.addEventListener('abort', onAbort)
    const ended = runLeg(engine, generation, controller.signal, this.#timings.cancelMs)
    const leg = { engineId: engine.id, cancel: onAbort, ended }
    this.#legs.add(leg)
    try {
      return await ended
    } finally {
      this.#legs.delete(leg)
      generation.signal.removeEventListener('abort', onAbort)
    }
  }
}

/** A cancelled leg may already hold its last token. */
function finishedBy({ sampled, sampling }: Generation): 'stop' | 'length' | undefined {
  const last = sampled.tokenIds.at(-1)
  if (last !== undefined && sampling.stopTokenIds.includes(last)) return 'stop'
  return sampled.tokenIds.length >= sampling.maxTokens ? 'length' : undefined
}

async function runLeg(
  engine: Engine,
  generation: Generation,
  signal: AbortSignal,
  cancelMs: number,
): Promise<LegOutcome> {
  // An engine that does not stop is given up; what it still says after that is not heard.
  const state = { isGivenUp: false }
  let timer: NodeJS.Timeout | undefined
  const givenUp = new Promise<LegOutcome>((resolve) => {
    signal.addEventListener('abort', () => {
      timer = setTimeout(() => {
        state.isGivenUp = true
        resolve({ kind: 'cancelled' })
      }, cancelMs)
    })
  })
  try {
    return await Promise.race([listen(engine, generation, signal, state), givenUp])
  } finally {
    clearTimeout(timer)
  }
}

async function listen(
  engine: Engine,
  generation: Generation,
  signal: AbortSignal,
  state: { readonly isGivenUp: boolean },
): Promise<LegOutcome> {
  const { requestId, executionId, sampled, sampling } = generation
  const promptIds = resumedFrom(generation.promptIds, sampled.tokenIds)
  const rest = { ...sampling, maxTokens: sampling.maxTokens - sampled.tokenIds.length }
  try {
    for await (const event of engine.generate({ requestId, executionId, promptIds, sampling: rest }, signal)) {
      if (state.isGivenUp) break
      if (event.kind === 'end') {
        correctVersions(sampled, event)
        return event
      }
      take(sampled, event)
      generation.onTokens(event.tokenIds)
    }
  } catch (error) {
    if (signal.aborted) return { kind: 'cancelled' }
    if (!isTransient(error)) throw error
  }
  return { kind: signal.aborted ? 'cancelled' : 'lost' }
}

function resumedFrom(promptIds: Int32Array, tokenIds: readonly number[]): Int32Array {
  if (tokenIds.length === 0) return promptIds
  const out = new Int32Array(promptIds.length + tokenIds.length)
  out.set(promptIds)
  out.set(tokenIds, promptIds.length)
  return out
}

function take(sampled: Sampled, event: Extract<GenerateEvent, { kind: 'tokens' }>): void {
  for (let i = 0; i < event.tokenIds.length; i++) {
    const logprob = event.logprobs[i] ?? Number.NaN
    const version = event.policyVersions[i]
    const isEvidence = logprob <= 0 && logprob > LOGPROB_SENTINEL && version !== undefined
    sampled.tokenIds.push(event.tokenIds[i] as number)
    sampled.logprobs.push(isEvidence ? logprob : Number.NaN)
    sampled.policyVersions.push(version ?? sampled.policyVersions.at(-1) ?? 0)
  }
}

/** Of this leg, whose tokens are the last ones. */
function correctVersions({ policyVersions }: Sampled, { policyVersions: corrected = [] }: GenerateEnd): void {
  policyVersions.splice(policyVersions.length - corrected.length, corrected.length, ...corrected)
}

function throwIfAborted(signal: AbortSignal): void {
  if (!signal.aborted) return
  throw new GyreError('the generation was cancelled: nobody waits for its answer', {
    boundary: 'engine',
    code: 'E_ENGINE_CANCELLED',
    cause: signal.reason,
  })
}
