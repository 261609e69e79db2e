/** @file Tiny embedded engines for tests: start one, sample from it, score rows with its trainer. */
import {
  createEmbeddedEngine,
  type EmbeddedEngine,
  type EmbeddedEngineOptions,
} from '../../src/adapters/engine/embedded/embedded-engine.ts'
import { executionId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import type { ModelShape } from '../../src/kernels/shape.ts'
import type { SamplingParams } from '../../src/ports/engine.ts'
import type { MicroBatch, Objective } from '../../src/training/batch.ts'

export const SHAPE: ModelShape = {
  vocabSize: 53,
  hiddenSize: 32,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 40,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
const SAMPLING: SamplingParams = { maxTokens: 60, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 1 }
export const CROSS_ENTROPY: Objective = { kind: 'cross-entropy' }

const open: EmbeddedEngine[] = []
/** Closes what `start` opened. */
export async function closeEngines(): Promise<void> {
  await Promise.all(open.splice(0).map((e) => e.close()))
}
export async function start(options: Partial<EmbeddedEngineOptions> = {}): Promise<EmbeddedEngine> {
  const sizes = { slots: 8, maxContext: 512, maxTrainTokens: 1024, seed: 9 }
  const engine = await createEmbeddedEngine({ model: SHAPE, ...sizes, ...options })
  open.push(engine)
  return engine
}
export interface Sampled {
  readonly ids: number[]
  readonly logprobs: number[]
  readonly versions: number[]
  finishReason?: string
  cachedTokens: number
}
export async function sample(
  engine: EmbeddedEngine,
  prompt: readonly number[],
  sampling: Partial<SamplingParams> = {},
  signal = new AbortController().signal,
  onTokens?: (soFar: Sampled) => void,
): Promise<Sampled> {
  const out: Sampled = { ids: [], logprobs: [], versions: [], cachedTokens: -1 }
  const request = {
    requestId: 'r',
    executionId: executionId('x'),
    promptIds: Int32Array.from(prompt),
    sampling: { ...SAMPLING, ...sampling },
  }
  for await (const event of engine.generate(request, signal)) {
    if (event.kind === 'tokens') {
      out.ids.push(...event.tokenIds)
      out.logprobs.push(...event.logprobs)
      out.versions.push(...event.policyVersions)
      onTokens?.(out)
    } else {
      out.finishReason = event.finishReason
      out.cachedTokens = event.cachedTokens
    }
  }
  return out
}

export function randomIds(seed: number, length: number): number[] {
  const rng = seededRng(seed)
  return Array.from({ length }, () => rng.below(SHAPE.vocabSize))
}

/** A sequence whose tokens from `from` on are targets. */
export interface Row {
  readonly ids: readonly number[]
  readonly from: number
}
/** Rows behind one another. */
export function pack(rows: readonly Row[]): MicroBatch {
  const ids: number[] = []
  const batch = { positions: [] as number[], ends: [] as number[], targets: [] as number[] }
  for (const row of rows) {
    const base = ids.length
    row.ids.forEach((id, i) => {
      ids.push(id)
      batch.positions.push(i)
      batch.ends.push(base + row.ids.length)
      if (i >= row.from) batch.targets.push(base + i)
    })
  }
  return microBatch(ids, batch.positions, batch.ends, batch.targets, (i) => i - 1)
}
export function microBatch(
  ids: readonly number[],
  positions: readonly number[],
  ends: readonly number[],
  targets: readonly number[],
  parent: (row: number) => number,
): MicroBatch {
  const r = targets.length
  return {
    tokenIds: Int32Array.from(ids),
    positions: Int32Array.from(positions),
    subtreeEnd: Int32Array.from(ends),
    targetRows: Int32Array.from(targets, parent),
    targetIds: Int32Array.from(targets, (i) => ids[i] ?? 0),
    targetWeights: new Float32Array(r).fill(1 / r),
    targetAdvantages: Float32Array.from(targets, (_, i) => Math.sin(i)),
    targetBehaviorLogprobs: new Float32Array(r).fill(-4),
  }
}
export async function score(engine: EmbeddedEngine, batch: MicroBatch): Promise<number[]> {
  return [...(await engine.forwardBackward(batch, CROSS_ENTROPY)).logprobs]
}
