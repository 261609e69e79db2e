/** @file The engine of a virtual cell: real sums on real arrays, in virtual time. */
import { GyreError } from '../../src/core/errors.ts'
import type { CellEngine } from '../../src/ports/cell.ts'
import type { GenerateEvent, GenerateRequest } from '../../src/ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch } from '../../src/training/batch.ts'
import { addSums, gradientOf, sumsOf } from '../../src/training/gradient-sums.ts'
import type { GradientSums } from '../../src/training/gradient-sums.ts'
import { SimKv } from './kv.ts'
import type { Machine, Surroundings } from './machines.ts'
import { addGradient, digestOf, evidenceOf, PARAMETERS, tokenAt } from './policy.ts'

/** Checkpoint folder -> the weights in it; undefined while it is only half written. */
export type Disk = Map<string, Float32Array | undefined>

const TOKEN_MS = 4
const PREFILL_MS = 0.25
const MICRO_STEP_MS = 30
const COPY_MS = 6
const DISK_MS = 20

const noSums = (): GradientSums => new BigInt64Array(PARAMETERS + 1)

export class SimEngine implements CellEngine {
  readonly parameterCount = PARAMETERS
  readonly maxContext = 4096
  readonly vocabSize = 32_768
  readonly backend = 'virtual'
  readonly kv: SimKv
  policyVersion = -1
  weights = new Float32Array(PARAMETERS)
  #digest = digestOf(this.weights)
  #sums = noSums()
  readonly #machine: Machine
  readonly #around: Surroundings

  constructor(machine: Machine, around: Surroundings) {
    this.#machine = machine
    this.#around = around
    this.kv = new SimKv(this, (ms) => this.#work(ms), around)
  }

  get digest(): number {
    return this.#digest
  }

  /** The prompt is [length of the answer, what was answered before a move ...]. */
  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const { requestId, executionId, promptIds, sampling } = request
    const length = promptIds[0] ?? 0
    for (let i = 1; i < promptIds.length; i++) {
      if (promptIds[i] !== tokenAt(requestId, i - 1, length)) {
        this.#around.accuse(`${requestId} goes on from a token ${i - 1} that was never sampled`)
      }
    }
    const cachedTokens = this.kv.cachedOf(executionId, promptIds)
    await this.#work(PREFILL_MS * (promptIds.length - cachedTokens))
    const context = [...promptIds]
    const end = Math.min(length, promptIds.length - 1 + sampling.maxTokens)
    for (let at = promptIds.length - 1; at < end;) {
      const count = Math.min(2, end - at)
      await this.#work(TOKEN_MS * count)
      if (signal.aborted) throw new GyreError('cancelled', { boundary: 'engine', code: 'E_ENGINE_CANCELLED' })
      const logprob = evidenceOf(this.#digest)
      const each = Array.from({ length: count }, (_, i) => at + i)
      at += count
      const tokenIds = each.map((i) => tokenAt(requestId, i, length))
      context.push(...tokenIds)
      this.kv.keep(executionId, context)
      yield {
        kind: 'tokens',
        tokenIds,
        logprobs: each.map(() => logprob),
        policyVersions: each.map(() => this.policyVersion),
      }
    }
    yield { kind: 'end', finishReason: 'stop', cachedTokens }
  }

  async forwardBackward(batch: MicroBatch): Promise<ForwardBackwardResult> {
    await this.#work(MICRO_STEP_MS)
    const gradient = new Float32Array(PARAMETERS)
    addGradient(gradient, batch.tokenIds[0] ?? 0, batch.tokenIds[1] ?? 0, this.#digest)
    addSums(this.#sums, [sumsOf(gradient)])
    return { loss: 0.5, entropy: 0.1, logprobs: new Float32Array(1), clippedTokens: 0, maskedTokens: 0 }
  }

  async zeroGradients(): Promise<void> {
    await this.#work(1)
    this.#sums = noSums()
  }

  async exportGradients(): Promise<GradientSums> {
    const copy = this.#sums.slice()
    await this.#work(COPY_MS)
    return copy
  }

  async addGradients(gradients: readonly GradientSums[]): Promise<void> {
    await this.#work(COPY_MS)
    addSums(this.#sums, gradients)
  }

  async optimizerStep(): Promise<{ readonly gradientNorm: number }> {
    await this.#work(COPY_MS)
    const gradient = gradientOf(this.#sums)
    this.#set(this.weights.map((value, at) => value + (gradient[at] ?? 0)))
    this.#sums = noSums()
    return { gradientNorm: Math.hypot(...gradient) }
  }

  async exportWeights(): Promise<Float32Array> {
    const copy = this.weights.slice()
    await this.#work(COPY_MS)
    return copy
  }

  async importWeights(weights: Float32Array, policyVersion: number): Promise<void> {
    await this.#work(COPY_MS)
    this.#set(weights.slice())
    this.policyVersion = policyVersion
  }

  async setPolicyVersion(policyVersion: number): Promise<void> {
    await this.#work(1)
    this.policyVersion = policyVersion
  }

  async save(folder: string): Promise<void> {
    this.#around.disk.set(folder, undefined)
    await this.#work(DISK_MS)
    if (this.#around.chaos.isDiskFull()) throw new Error('ENOSPC: no space left on device')
    this.#around.disk.set(folder, this.weights.slice())
  }

  async load(folder: string, policyVersion: number): Promise<void> {
    await this.#work(DISK_MS)
    const saved = this.#around.disk.get(folder)
    if (saved === undefined) throw new Error(`${folder} holds no whole checkpoint`)
    this.#set(saved.slice())
    this.policyVersion = policyVersion
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  #set(weights: Float32Array<ArrayBuffer>): void {
    this.weights = weights
    this.#digest = digestOf(weights)
    this.kv.drop()
  }

  #work(ms: number): Promise<void> {
    return this.#around.time.sleep(this.#machine.takes(ms))
  }
}
