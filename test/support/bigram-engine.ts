/**
 * @file A real CellEngine small enough for tests: a table of next-token logits, [V, V].
 *
 * It samples with draws that depend on (seed, position) only, computes exact gradients of the objectives
 * in training/batch.ts, and takes AdamW steps. `tokenDelayMs` and `stepDelayMs` make it slow on purpose.
 */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { GyreError } from '../../src/core/errors.ts'
import { hashSeed, seededRng } from '../../src/core/rng.ts'
import type { CellEngine } from '../../src/ports/cell.ts'
import type { GenerateEvent, GenerateRequest } from '../../src/ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../src/training/batch.ts'
import { addSums, gradientOf, type GradientSums, sumsOf } from '../../src/training/gradient-sums.ts'

export interface BigramOptions {
  readonly vocabSize: number
  readonly maxContext?: number
  readonly seed?: number
  readonly tokenDelayMs?: number
  readonly stepDelayMs?: number
}

export class BigramEngine implements CellEngine {
  readonly backend = 'bigram-table'
  readonly vocabSize: number
  readonly maxContext: number
  readonly parameterCount: number
  readonly #tokenDelayMs: number
  readonly #stepDelayMs: number
  #weights: Float32Array
  readonly #gradients: GradientSums
  #firstMoment: Float32Array
  #secondMoment: Float32Array
  #steps = 0
  #policyVersion = 0

  constructor(options: BigramOptions) {
    this.vocabSize = options.vocabSize
    this.maxContext = options.maxContext ?? 4096
    this.parameterCount = options.vocabSize ** 2
    this.#tokenDelayMs = options.tokenDelayMs ?? 0
    this.#stepDelayMs = options.stepDelayMs ?? 0
    const rng = seededRng(options.seed ?? 1)
    this.#weights = Float32Array.from({ length: this.parameterCount }, () => rng.next() - 0.5)
    this.#gradients = new BigInt64Array(this.parameterCount + 1)
    this.#firstMoment = new Float32Array(this.parameterCount)
    this.#secondMoment = new Float32Array(this.parameterCount)
  }

  get policyVersion(): number {
    return this.#policyVersion
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const { promptIds, sampling } = request
    if (promptIds.length >= this.maxContext) {
      throw new GyreError(`a context of ${promptIds.length} tokens leaves no room in ${this.maxContext}`, {
        boundary: 'engine',
        code: 'E_ENGINE_OVERLONG',
      })
    }
    const stops = new Set(sampling.stopTokenIds)
    const room = Math.min(sampling.maxTokens, this.maxContext - promptIds.length)
    let previous = promptIds[promptIds.length - 1] ?? 0
    for (let i = 0; i < room; i++) {
      // Without a delay, still let other work of the process run between tokens.
      await sleep(this.#tokenDelayMs, undefined, { signal })
      const logprobs = this.#logprobs(previous)
      const draw = seededRng(hashSeed(sampling.seed, promptIds.length + i)).next()
      previous = sampling.temperature === 0 ? argmax(logprobs) : sample(logprobs, sampling.temperature, draw)
      yield {
        kind: 'tokens',
        tokenIds: [previous],
        logprobs: [Math.fround(logprobs[previous] ?? Number.NaN)],
        policyVersions: [this.#policyVersion],
      }
      if (stops.has(previous)) {
        yield { kind: 'end', finishReason: 'stop', cachedTokens: 0 }
        return
      }
    }
    yield { kind: 'end', finishReason: 'length', cachedTokens: 0 }
  }

  async forwardBackward(batch: MicroBatch, objective: Objective): Promise<ForwardBackwardResult> {
    await sleep(this.#stepDelayMs)
    const logprobs = new Float32Array(batch.targetIds.length)
    const gradient = new Float32Array(this.parameterCount)
    let loss = 0
    let entropy = 0
    let clippedTokens = 0
    let maskedTokens = 0
    batch.targetIds.forEach((target, r) => {
      const context = batch.tokenIds[batch.targetRows[r] ?? 0] ?? 0
      const row = this.#logprobs(context)
      const logp = row[target] ?? Number.NaN
      const weight = batch.targetWeights[r] ?? 0
      logprobs[r] = logp
      entropy -= weight * row.reduce((sum, lp) => sum + Math.exp(lp) * lp, 0)
      const part = tokenLoss(objective, logp, batch.targetBehaviorLogprobs[r] ?? 0, batch.targetAdvantages[r] ?? 0)
      loss += weight * part.loss
      clippedTokens += part.isClipped ? 1 : 0
      maskedTokens += part.isMasked ? 1 : 0
      for (let v = 0; v < this.vocabSize; v++) {
        const at = context * this.vocabSize + v
        const slope = (v === target ? 1 : 0) - Math.exp(row[v] ?? 0)
        gradient[at] = (gradient[at] ?? 0) + weight * part.byLogp * slope
      }
    })
    addSums(this.#gradients, [sumsOf(gradient)])
    return { loss, entropy, logprobs, clippedTokens, maskedTokens }
  }

  async zeroGradients(): Promise<void> {
    this.#gradients.fill(0n)
  }

  async exportGradients(): Promise<GradientSums> {
    return this.#gradients.slice()
  }

  async addGradients(gradients: readonly GradientSums[]): Promise<void> {
    addSums(this.#gradients, gradients)
  }

  async optimizerStep(params: OptimizerParams): Promise<{ readonly gradientNorm: number }> {
    await sleep(this.#stepDelayMs)
    const gradient = gradientOf(this.#gradients)
    const gradientNorm = Math.sqrt(gradient.reduce((sum, g) => sum + g * g, 0))
    const scale = params.gradientClip > 0 ? Math.min(1, params.gradientClip / gradientNorm) : 1
    this.#steps += 1
    for (let i = 0; i < this.parameterCount; i++) {
      const g = (gradient[i] ?? 0) * scale
      const m = params.beta1 * (this.#firstMoment[i] ?? 0) + (1 - params.beta1) * g
      const v = params.beta2 * (this.#secondMoment[i] ?? 0) + (1 - params.beta2) * g * g
      this.#firstMoment[i] = m
      this.#secondMoment[i] = v
      const step =
        m / (1 - params.beta1 ** this.#steps) / (Math.sqrt(v / (1 - params.beta2 ** this.#steps)) + params.epsilon)
      const w = this.#weights[i] ?? 0
      this.#weights[i] = w - params.learningRate * (step + params.weightDecay * w)
    }
    this.#gradients.fill(0n)
    return { gradientNorm }
  }

  async exportWeights(): Promise<Float32Array> {
    return this.#weights.slice()
  }

  async importWeights(weights: Float32Array, policyVersion: number): Promise<void> {
    this.#weights = weights.slice()
    this.#policyVersion = policyVersion
  }

  async setPolicyVersion(policyVersion: number): Promise<void> {
    this.#policyVersion = policyVersion
  }

  async save(folder: string): Promise<void> {
    const state = [this.#weights, this.#firstMoment, this.#secondMoment].map((a) => [...a])
    await writeFile(join(folder, 'bigram.json'), JSON.stringify({ steps: this.#steps, state }))
  }

  async load(folder: string, policyVersion: number): Promise<void> {
    const saved = JSON.parse(await readFile(join(folder, 'bigram.json'), 'utf8')) as {
      steps: number
      state: number[][]
    }
    const [weights = [], first = [], second = []] = saved.state
    this.#weights = Float32Array.from(weights)
    this.#firstMoment = Float32Array.from(first)
    this.#secondMoment = Float32Array.from(second)
    this.#steps = saved.steps
    this.#gradients.fill(0n)
    this.#policyVersion = policyVersion
  }

  async close(): Promise<void> {
    this.#gradients.fill(0n)
  }

  #logprobs(context: number): Float64Array {
    const row = Float64Array.from(this.#weights.subarray(context * this.vocabSize, (context + 1) * this.vocabSize))
    const top = row.reduce((a, b) => Math.max(a, b), -Infinity)
    const norm = top + Math.log(row.reduce((sum, x) => sum + Math.exp(x - top), 0))
    return row.map((x) => x - norm)
  }
}

interface TokenLoss {
  readonly loss: number
  /** Derivative of the loss by the log-prob of the target. */
  readonly byLogp: number
  readonly isClipped: boolean
  readonly isMasked: boolean
}

/** Equation 7 of PPO (arXiv 1707.06347), and its derivative by log p. */
function tokenLoss(objective: Objective, logp: number, behavior: number, advantage: number): TokenLoss {
  if (objective.kind === 'cross-entropy') return { loss: -logp, byLogp: -1, isClipped: false, isMasked: false }
  const ratio = Math.exp(logp - behavior)
  if (ratio > objective.ratioBound || ratio < 1 / objective.ratioBound) {
    return { loss: 0, byLogp: 0, isClipped: false, isMasked: true }
  }
  const clipped = Math.min(Math.max(ratio, 1 - objective.clipLow), 1 + objective.clipHigh)
  const isClipped = clipped * advantage < ratio * advantage
  return {
    loss: -Math.min(ratio * advantage, clipped * advantage),
    byLogp: isClipped ? 0 : -ratio * advantage,
    isClipped,
    isMasked: false,
  }
}

function argmax(values: Float64Array): number {
  return values.reduce((best, value, i) => (value > (values[best] ?? -Infinity) ? i : best), 0)
}

function sample(logprobs: Float64Array, temperature: number, draw: number): number {
  const weights = logprobs.map((lp) => Math.exp(lp / temperature))
  let rest = draw * weights.reduce((a, b) => a + b, 0)
  for (let i = 0; i < weights.length; i++) {
    rest -= weights[i] ?? 0
    if (rest < 0) return i
  }
  return weights.length - 1
}
