/** @file The parameters as a whole on the leading thread: random start, flat copies, checkpoints. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { type Rng, seededRng } from '../../../core/rng.ts'
import type { Machine } from '../../../kernels/machine.ts'
import type { ParameterTensor } from '../../../kernels/shape.ts'
import {
  modelError,
  type NamedTensor,
  readModelConfig,
  readTensors,
  writeModelConfig,
  writeTensors,
} from './model-files.ts'

/** A view of a flat vector of the shared memory, without padding. @param at byte offset. */
export function flatVector(m: Machine, at: number): Float32Array {
  return m.f32.subarray(at / 4, at / 4 + m.plan.layout.count)
}

/**
 * Normal weights of deviation 1 / (2 sqrt(fan-in)); projections into the residual stream are divided by
 * sqrt(2 layers), the embedding has deviation 0.04, norm gains are 1.
 */
export function initializeWeights(m: Machine, seed: number): void {
  const normal = normalOf(seededRng(seed))
  const { shape, layout, weights } = m.plan
  const flat = flatVector(m, weights)
  for (const t of layout.tensors) {
    const part = flat.subarray(t.offset, t.offset + t.size)
    if (!t.decays) part.fill(1)
    else {
      const deviation = deviationOf(t, shape.layers)
      for (let i = 0; i < part.length; i++) part[i] = normal() * deviation
    }
  }
}

function deviationOf(t: ParameterTensor, layers: number): number {
  if (t.name === 'model.embed_tokens.weight') return 0.04
  const deviation = 0.5 / Math.sqrt(t.shape[1] ?? 1)
  return /\.(?:o_proj|down_proj)\./.test(t.name) ? deviation / Math.sqrt(2 * layers) : deviation
}

/** Box-Muller, one of the pair. */
function normalOf(rng: Rng): () => number {
  return () => Math.sqrt(-2 * Math.log(1 - rng.next())) * Math.cos(2 * Math.PI * rng.next())
}

/** cos rows and sin rows of every position (arXiv 2104.09864, rotate-half convention). */
export function writeRopeTable(m: Machine): void {
  const { shape, capacity, ropeTable } = m.plan
  const half = shape.headDim / 2
  for (let p = 0; p < capacity.maxContext; p++) {
    for (let i = 0; i < half; i++) {
      const angle = p * shape.ropeTheta ** (-i / half)
      const at = ropeTable / 4 + p * shape.headDim + i
      m.f32[at] = Math.cos(angle)
      m.f32[at + half] = Math.sin(angle)
    }
  }
}

const MODEL = 'model.safetensors'
const OPTIMIZER = 'optimizer.safetensors'

function named(m: Machine, at: number, prefix = ''): readonly NamedTensor[] {
  const flat = flatVector(m, at)
  return m.plan.layout.tensors.map((t) => ({
    name: prefix + t.name,
    shape: t.shape,
    data: flat.subarray(t.offset, t.offset + t.size),
  }))
}

function moments(m: Machine): readonly NamedTensor[] {
  return [...named(m, m.plan.moment1, 'exp_avg.'), ...named(m, m.plan.moment2, 'exp_avg_sq.')]
}

/** Writes the model and the optimizer, each file whole or not at all. @param steps optimizer steps done. */
export function saveModel(m: Machine, folder: string, steps: number): void {
  writeModelConfig(folder, m.plan.shape, m.plan.capacity.maxContext)
  writeTensors(join(folder, OPTIMIZER), moments(m), { format: 'gyre', steps: String(steps) })
  writeTensors(join(folder, MODEL), named(m, m.plan.weights), { format: 'pt' })
}

/** Reads weights, and the optimizer when it is there. @returns optimizer steps done. @throws GyreError E_ENGINE_MODEL. */
export function loadModel(m: Machine, folder: string): number {
  const { shape } = readModelConfig(folder)
  const differs = Object.entries(m.plan.shape).find(([key, value]) => shape[key as keyof typeof shape] !== value)
  if (differs !== undefined) {
    const found = shape[differs[0] as keyof typeof shape]
    throw modelError(`the model in ${folder} has ${differs[0]} ${found}, this engine was made for ${differs[1]}`)
  }
  readTensors(join(folder, MODEL), named(m, m.plan.weights))
  const optimizer = join(folder, OPTIMIZER)
  if (existsSync(optimizer)) return Number(readTensors(optimizer, moments(m))['steps'] ?? 0)
  flatVector(m, m.plan.moment1).fill(0)
  flatVector(m, m.plan.moment2).fill(0)
  return 0
}
