/** @file Packed trees, whole and cut, against the same paths as flat rows: the same gradient of every parameter. */
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ModelShape } from '../../../kernels/shape.ts'
import type { Objective } from '../../../training/batch.ts'
import type { PackedMicroStep, PackExecution } from '../../../training/forest.ts'
import { gradientOf } from '../../../training/gradient-sums.ts'
import { packFlat, packMicroSteps } from '../../../training/pack.ts'
import { createEmbeddedEngine, type EmbeddedEngine } from './embedded-engine.ts'

const SHAPE: ModelShape = {
  vocabSize: 29,
  hiddenSize: 16,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 24,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
const PPO: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.2,
  clipHigh: 0.28,
  ratioBound: 4,
  entropyWeight: 0.05,
}

let engine: EmbeddedEngine
beforeAll(async () => {
  engine = await createEmbeddedEngine({ model: SHAPE, slots: 1, maxContext: 128, maxTrainTokens: 1024, seed: 5 })
})
afterAll(() => engine.close())

/** Runs of ids that paths are made of: few of them, so that paths branch within and between executions. */
const run = fc.record({ which: fc.integer({ min: 0, max: 3 }), length: fc.integer({ min: 1, max: 20 }) })
const target = fc.integer({ min: 0, max: 2 })
const path = fc
  .record({
    runs: fc.array(run, { minLength: 1, maxLength: 5 }),
    bits: fc.array(target, { minLength: 7, maxLength: 7 }),
  })
  .map(({ runs, bits }) => {
    const ids = runs.flatMap(({ which, length }) => Array.from({ length }, (_, i) => 2 + which * 5 + (i % 5)))
    const tokenIds = Int32Array.from([1, ...ids])
    return {
      tokenIds,
      targetMask: Uint8Array.from(tokenIds, (_, i) => (i > 0 && bits[i % 7] === 0 ? 1 : 0)),
      // A fresh model gives every id about the same log-prob: ratios on both sides of the clip, and beyond the bound.
      behaviorLogprobs: Float32Array.from(tokenIds, (id, i) => -Math.log(SHAPE.vocabSize) + ((id + i) % 9) / 5 - 0.6),
    }
  })
const executions: fc.Arbitrary<readonly PackExecution[]> = fc
  .array(fc.array(path, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 3 })
  .map((all) =>
    all.map((sequences, i) => ({ key: `x${i}`, advantage: i - 0.7, tokenWeight: 0.01 * (i + 1), sequences })),
  )

async function gradient(steps: readonly PackedMicroStep[]): Promise<Float32Array> {
  await engine.zeroGradients()
  for (const { batch } of steps) await engine.forwardBackward(batch, PPO)
  return gradientOf(await engine.exportGradients())
}

const norm = (vector: Float32Array): number => Math.hypot(...vector)

/** Of the difference, relative to the gradient of `flat`. */
function relative(tree: Float32Array, flat: Float32Array): number {
  const length = norm(flat)
  return norm(tree.map((g, i) => g - (flat[i] ?? Number.NaN))) / (length === 0 ? 1 : length)
}

test('random trees give the gradient of their flat rows to 1e-5, however they are cut', async () => {
  let trained = 0
  await fc.assert(
    fc.asyncProperty(executions, fc.integer({ min: 20, max: 200 }), async (all, maxTokens) => {
      const flat = await gradient(packFlat(all, { maxTokens: 1024 }))
      const whole = await gradient(packMicroSteps(all, { maxTokens: 1024, mergePrefix: true }))
      const cut = await gradient(packMicroSteps(all, { maxTokens, mergePrefix: true, minMicroSteps: 2 }))
      if (norm(flat) > 0) trained++
      expect(relative(whole, flat)).toBeLessThan(1e-5)
      expect(relative(cut, flat)).toBeLessThan(1e-5)
    }),
    { numRuns: 40 },
  )
  expect(trained).toBeGreaterThan(30)
})

test('a tree with one position off is found out', async () => {
  const shared = [1, 2, 3, 4, 5, 6]
  const sequences = [7, 8].map((last) => ({
    tokenIds: Int32Array.from([...shared, last, 9, last]),
    targetMask: Uint8Array.from([0, 0, 0, 0, 0, 0, 1, 1, 1]),
    behaviorLogprobs: new Float32Array(9).fill(-Math.log(SHAPE.vocabSize)),
  }))
  const all: PackExecution[] = [{ key: 'x', advantage: 1, tokenWeight: 0.1, sequences }]
  const flat = await gradient(packFlat(all, { maxTokens: 1024 }))
  const [step] = packMicroSteps(all, { maxTokens: 1024, mergePrefix: true })
  if (step === undefined) throw new Error('nothing was packed')
  expect(relative(await gradient([step]), flat)).toBeLessThan(1e-5)
  const shifted = step.batch.positions.map((position, row) => (row >= 9 ? row : position))
  const wrong = { ...step, batch: { ...step.batch, positions: Int32Array.from(shifted) } }
  expect(relative(await gradient([wrong]), flat)).toBeGreaterThan(1e-4)
})
