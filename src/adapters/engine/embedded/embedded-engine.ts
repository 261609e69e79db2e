/**
 * @file The embedded engine as its process sees it: a CellEngine whose numbers are made in worker threads over one
 * shared memory. The caller's event loop only passes messages.
 */
import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { GyreError } from '../../../core/errors.ts'
import { type Capacity, type MemoryPlan, planMemory } from '../../../kernels/plan.ts'
import { type ModelShape, unsupportedShape } from '../../../kernels/shape.ts'
import { allocateMemory, compileKernels } from '../../../kernels/wasm.ts'
import type { CellEngine, HeldGradients, HeldResult, KvCache } from '../../../ports/cell.ts'
import type { GenerateEvent, GenerateRequest } from '../../../ports/engine.ts'
import type { ForwardBackwardResult } from '../../../training/batch.ts'
import type { GradientSums } from '../../../training/gradient-sums.ts'
import { EngineLink } from './engine-link.ts'
import { kvLayout } from './handover.ts'
import { kvCache } from './kv-cache.ts'
import type { Command, CommandResult, WorkerSetup } from './messages.ts'
import { modelError, readModelConfig } from './model-files.ts'
import { SharedVectors } from './shared-vectors.ts'

export interface EmbeddedEngineOptions {
  /** The shape of a model with random weights, or a folder with `config.json` and `model.safetensors`. */
  readonly model: ModelShape | { readonly folder: string }
  /** Threads of the numeric kernels; the same bits for any number. Default 1. */
  readonly threads?: number
  /** Sequences that generate at once, each with a resident cache. Default 16. */
  readonly slots?: number
  /** Longest sequence. Default: what the model says, at most 2048. [tokens] */
  readonly maxContext?: number
  /** Rows of the largest micro-batch. Default 2048. [tokens] */
  readonly maxTrainTokens?: number
  /** Of the random weights. Default 0. */
  readonly seed?: number
  /** Stamped on sampled tokens. Default 0. */
  readonly policyVersion?: number
}

export interface EmbeddedEngine extends CellEngine {
  readonly kv: KvCache
  readonly held: HeldGradients
  readonly shape: ModelShape
  readonly slots: number
  readonly maxTrainTokens: number
}

const DEFAULT_CONTEXT = 2048
/** Rows of one sampling step beyond one for each slot: chunks of prompts. [tokens] */
const PROMPT_ROWS = 128
/** Workers run compiled code, wherever this file itself was started from. */
const COMPILED = resolve(import.meta.dirname, '../../../../dist')

/** @throws GyreError E_ENGINE_MODEL when the model cannot be run, E_ENGINE_BUILD when `npm run build` is missing. */
export async function createEmbeddedEngine(options: EmbeddedEngineOptions): Promise<EmbeddedEngine> {
  const { shape, maxPositions } =
    'folder' in options.model
      ? readModelConfig(options.model.folder)
      : { shape: options.model, maxPositions: DEFAULT_CONTEXT }
  const problem = unsupportedShape(shape)
  if (problem !== undefined) throw modelError(problem)
  const slots = options.slots ?? 16
  const capacity: Capacity = {
    threads: options.threads ?? 1,
    slots,
    maxContext: options.maxContext ?? Math.min(DEFAULT_CONTEXT, maxPositions),
    maxTrainTokens: options.maxTrainTokens ?? 2048,
    stepRows: slots + PROMPT_ROWS,
  }
  const plan = planMemory(shape, capacity)
  if (plan.bytes > 4 * 2 ** 30) {
    throw modelError(`the model needs ${plan.bytes} bytes of memory: at most 4 GiB fit, lower slots or maxTrainTokens`)
  }
  const setup: Omit<WorkerSetup, 'thread'> = {
    shape,
    capacity,
    module: compileKernels(readCompiled('kernels/engine.wasm')),
    memory: allocateMemory(plan.bytes),
    start: 'folder' in options.model ? { folder: options.model.folder } : { seed: options.seed ?? 0 },
    policyVersion: options.policyVersion ?? 0,
  }
  const file = join(COMPILED, 'adapters/engine/embedded/worker.js')
  if (!existsSync(file)) throw notBuilt(file)
  const workers = Array.from(
    { length: capacity.threads },
    (_, thread) => new Worker(file, { workerData: { ...setup, thread } satisfies WorkerSetup }),
  )
  const link = new EngineLink(workers)
  await link.ready()
  return new Host(link, plan, new SharedVectors(plan, setup.memory), setup.policyVersion)
}

function notBuilt(file: string): GyreError {
  return new GyreError(`${file} is missing: run \`npm run build\` first`, {
    boundary: 'engine',
    code: 'E_ENGINE_BUILD',
  })
}

function readCompiled(name: string): Uint8Array {
  const file = join(COMPILED, name)
  if (!existsSync(file)) throw notBuilt(file)
  return readFileSync(file)
}

function rejectRequest(code: 'E_ENGINE_OVERLONG' | 'E_ENGINE_REQUEST', message: string): never {
  throw new GyreError(message, { boundary: 'engine', code })
}

class Host implements EmbeddedEngine {
  readonly backend = 'wasm-simd'
  readonly shape: ModelShape
  readonly slots: number
  readonly maxContext: number
  readonly maxTrainTokens: number
  readonly vocabSize: number
  readonly parameterCount: number
  readonly kv: KvCache
  readonly #link: EngineLink
  readonly #vectors: SharedVectors
  /** Commands under way that change weights or replace gradients. At rest, the memory is read beside the threads. */
  readonly #changes = new Set<Promise<unknown>>()
  #policyVersion: number

  constructor(link: EngineLink, plan: MemoryPlan, vectors: SharedVectors, policyVersion: number) {
    const { shape, capacity } = plan
    this.#link = link
    this.#vectors = vectors
    this.shape = shape
    this.slots = capacity.slots
    this.maxContext = capacity.maxContext
    this.maxTrainTokens = capacity.maxTrainTokens
    this.vocabSize = shape.vocabSize
    this.parameterCount = plan.layout.count
    this.kv = kvCache(link, kvLayout(plan))
    this.#policyVersion = policyVersion
  }

  get policyVersion(): number {
    return this.#policyVersion
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent> {
    this.#checkPrompt(request)
    yield* this.#link.generate(request, signal)
  }

  #checkPrompt({ promptIds, sampling }: GenerateRequest): void {
    if (promptIds.length >= this.maxContext) {
      rejectRequest('E_ENGINE_OVERLONG', `${promptIds.length} tokens leave no room in a context of ${this.maxContext}`)
    }
    if (promptIds.length === 0) rejectRequest('E_ENGINE_REQUEST', 'the prompt is empty: it needs at least one token')
    const bad = promptIds.findIndex((id) => id < 0 || id >= this.vocabSize)
    if (bad >= 0) {
      rejectRequest(
        'E_ENGINE_REQUEST',
        `promptIds[${bad}] is ${promptIds[bad]}: the vocabulary has ${this.vocabSize} tokens`,
      )
    }
    if (!(sampling.maxTokens >= 1))
      rejectRequest('E_ENGINE_REQUEST', `maxTokens is ${sampling.maxTokens}: it must be positive`)
  }

  forwardBackward: CellEngine['forwardBackward'] = async (batch, objective) =>
    (await this.#link.command({ kind: 'forward-backward', batch, objective })) as ForwardBackwardResult

  async zeroGradients(): Promise<void> {
    await this.#change({ kind: 'zero-gradients' })
  }

  async exportGradients(): Promise<GradientSums> {
    for (;;) {
      await this.#rest()
      const sums = this.#vectors.gradients()
      if (sums !== undefined) return sums
      // A micro-step ended during the copy; the next one takes longer than a copy.
      await nextTurn()
    }
  }

  async addGradients(gradients: readonly GradientSums[]): Promise<void> {
    await this.#change({ kind: 'add-gradients', gradients })
  }

  optimizerStep: CellEngine['optimizerStep'] = async (params) =>
    (await this.#change({ kind: 'optimizer-step', params })) as { gradientNorm: number }

  async exportWeights(): Promise<Float32Array> {
    await this.#rest()
    return this.#vectors.weights()
  }

  readonly held: HeldGradients = {
    hold: async (key, batch, objective) =>
      (await this.#link.command({ kind: 'hold-gradient', key, batch, objective })) as HeldResult,
    apply: async (key, scale) => {
      await this.#link.command({ kind: 'apply-held', key, scale })
    },
    drop: async (keys) => {
      await this.#link.command({ kind: 'drop-held', ...(keys === undefined ? {} : { keys }) })
    },
  }

  #change(command: Command): Promise<CommandResult> {
    const result = this.#link.command(command)
    const settled = result.catch(() => undefined).finally(() => this.#changes.delete(settled))
    this.#changes.add(settled)
    return result
  }

  /** Until no such command is under way; none begins before the caller's next await. */
  async #rest(): Promise<void> {
    while (this.#changes.size > 0) await Promise.all(this.#changes)
    this.#link.checkOpen()
  }

  async importWeights(weights: Float32Array, policyVersion: number): Promise<void> {
    await this.#change({ kind: 'import-weights', weights, policyVersion })
    this.#policyVersion = policyVersion
  }

  async setPolicyVersion(policyVersion: number): Promise<void> {
    await this.#link.command({ kind: 'set-policy-version', policyVersion })
    this.#policyVersion = policyVersion
  }

  async save(folder: string): Promise<void> {
    await this.#link.command({ kind: 'save', folder })
  }

  async load(folder: string, policyVersion: number): Promise<void> {
    await this.#change({ kind: 'load', folder, policyVersion })
    this.#policyVersion = policyVersion
  }

  close(): Promise<void> {
    return this.#link.close()
  }
}
