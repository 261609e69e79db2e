/** @file Gradients kept aside until the advantage of their execution is known: see HeldGradients of ports/cell.ts. */
import type { Machine } from '../../../kernels/machine.ts'
import type { HeldResult } from '../../../ports/cell.ts'
import type { ForwardBackwardResult, MicroBatch, Objective } from '../../../training/batch.ts'
import { accumulate, computeGradient, trainerError } from './trainer.ts'

/** Most gradients, and most room for them. [gradients], [bytes] */
const MAX_HELD = 64
const MAX_BYTES = 512 * 2 ** 20

interface Held {
  /** [P] for an advantage of `sign`. */
  readonly gradient: Float32Array
  readonly sign: 1 | -1
  readonly outsideTokens: number
  /** Of the micro-batch. [tokens] */
  readonly tokens: number
}

export class HeldGradientStore {
  readonly #m: Machine
  readonly #held = new Map<string, Held>()

  constructor(m: Machine) {
    this.#m = m
  }

  /** A key that is held already is computed anew. */
  hold(key: string, batch: MicroBatch, objective: Objective): HeldResult {
    const sign = holdableSign(batch, objective)
    const { count } = this.#m.plan.layout
    const room = Math.min(MAX_HELD, Math.floor(MAX_BYTES / (count * 4)))
    this.#held.delete(key)
    if (this.#held.size >= room) {
      throw trainerError('E_TRAINER_HELD_FULL', `${this.#held.size} gradients are held and no more fit`)
    }
    const result = computeGradient(this.#m, batch, objective)
    const outsideTokens = countOutside(batch, result, objective)
    const gradient = this.#take(batch.tokenIds.length)
    this.#held.set(key, { gradient, sign, outsideTokens, tokens: batch.tokenIds.length })
    return { ...result, outsideTokens }
  }

  apply(key: string, scale: number): void {
    const held = this.#held.get(key)
    if (held === undefined) throw trainerError('E_TRAINER_NOT_HELD', `no gradient is held for ${key}: compute it`)
    const { gradient, sign, outsideTokens, tokens } = held
    if (outsideTokens > 0 && scale * sign < 0) {
      const message = `the gradient of ${key} was held for the other sign, and ${outsideTokens} tokens depend on it: compute it`
      throw trainerError('E_TRAINER_HELD_SIGN', message)
    }
    const { gradients } = this.#m.plan
    const factor = scale * sign
    const out = this.#m.f32
    for (let i = 0; i < gradient.length; i++) out[gradients / 4 + i] = factor * (gradient[i] ?? NaN)
    accumulate(this.#m, tokens)
    this.#held.delete(key)
  }

  /** All when no keys are given. */
  drop(keys?: readonly string[]): void {
    if (keys === undefined) this.#held.clear()
    else for (const key of keys) this.#held.delete(key)
  }

  /** The gradient just computed, whose place is zero again. */
  #take(tokens: number): Float32Array {
    const { gradients, layout } = this.#m.plan
    const at = gradients / 4
    const largest = this.#m.k.largestMagnitude(gradients, layout.count)
    const gradient = this.#m.f32.slice(at, at + layout.count)
    this.#m.f32.fill(0, at, at + layout.paddedCount)
    if (Number.isFinite(largest)) return gradient
    throw trainerError('E_TRAINER_NONFINITE', `the gradient of a micro-batch of ${tokens} tokens is not finite`)
  }
}

function holdableSign(batch: MicroBatch, objective: Objective): 1 | -1 {
  if (objective.kind !== 'policy-gradient' || objective.entropyWeight !== 0) {
    const message = 'only a policy gradient without entropy bonus can be held: nothing else is linear in the advantage'
    throw trainerError('E_TRAINER_NOT_HOLDABLE', message)
  }
  const sign = batch.targetAdvantages[0] ?? 1
  if ((sign === 1 || sign === -1) && batch.targetAdvantages.every((a) => a === sign)) return sign
  throw trainerError('E_TRAINER_NOT_HOLDABLE', 'the advantages of a micro-batch to hold must be all 1 or all -1')
}

/** Targets that count and whose ratio is beyond the clip on one side, where one sign has a slope and the other none. */
function countOutside(batch: MicroBatch, { logprobs }: ForwardBackwardResult, o: Objective): number {
  if (o.kind !== 'policy-gradient') return 0
  return logprobs.reduce((count, logp, i) => {
    const ratio = Math.exp(logp - (batch.targetBehaviorLogprobs[i] ?? NaN))
    const isMasked = !(ratio <= o.ratioBound && ratio >= 1 / o.ratioBound)
    return count + (!isMasked && (ratio < 1 - o.clipLow || ratio > 1 + o.clipHigh) ? 1 : 0)
  }, 0)
}
