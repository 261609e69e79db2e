import { afterEach, describe, expect, test } from 'vitest'
import { CROSS_ENTROPY, closeEngines, pack, randomIds, start } from '../../../../test/support/embedded-engines.ts'
import { seededRng } from '../../../core/rng.ts'
import type { MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
import { addSums, gradientOf, type GradientSums } from '../../../training/gradient-sums.ts'
import type { EmbeddedEngine } from './embedded-engine.ts'

const ADAM: OptimizerParams = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  gradientClip: 1,
}
const PPO: Objective = { kind: 'policy-gradient', clipLow: 0.2, clipHigh: 0.28, ratioBound: 40, entropyWeight: 0.01 }

afterEach(closeEngines)

const batchOf = (seed: number, length = 40 + seed * 7): MicroBatch =>
  pack([
    { ids: randomIds(seed, length), from: 3 },
    { ids: randomIds(seed + 100, 30), from: 1 },
  ])

async function sumsAfter(engine: EmbeddedEngine, batches: readonly MicroBatch[]): Promise<GradientSums> {
  for (const batch of batches) await engine.forwardBackward(batch, PPO)
  return engine.exportGradients()
}

const text = (values: Float32Array | BigInt64Array): string => Buffer.from(values.buffer).toString('base64')

describe('the gradient of a micro-step', () => {
  test('is the same for 1, 2 and 3 threads, and whatever the engine did before', async () => {
    const batch = batchOf(4)
    const fresh = await sumsAfter(await start(), [batch])
    for (const threads of [1, 2, 3]) {
      const engine = await start({ threads })
      await engine.forwardBackward(batchOf(9, 500), CROSS_ENTROPY)
      await engine.forwardBackward(batchOf(1), PPO)
      await engine.zeroGradients()
      expect(text(await sumsAfter(engine, [batch]))).toBe(text(fresh))
    }
  })

  test('adds up to the same bits in any order and split, and to the float32 sum within 1e-6', async () => {
    const engine = await start()
    const batches = Array.from({ length: 7 }, (_, i) => batchOf(i))
    const all = await sumsAfter(engine, batches)
    await engine.zeroGradients()
    expect(text(await sumsAfter(engine, batches.toReversed()))).toBe(text(all))

    const single: GradientSums[] = []
    for (const batch of batches) {
      await engine.zeroGradients()
      single.push(await sumsAfter(engine, [batch]))
    }
    await engine.zeroGradients()
    await engine.addGradients(single)
    expect(text(await engine.exportGradients())).toBe(text(all))
    const added = new BigInt64Array(all.length)
    addSums(added, single)
    expect(text(added)).toBe(text(all))

    const plain = new Float32Array(engine.parameterCount)
    for (const sums of single) gradientOf(sums).forEach((g, i) => (plain[i] = (plain[i] ?? 0) + g))
    const exact = gradientOf(all)
    const scale = exact.reduce((a, g) => Math.max(a, Math.abs(g)), 0)
    const worst = exact.reduce((a, g, i) => Math.max(a, Math.abs(g - (plain[i] ?? NaN))), 0)
    expect(worst / scale).toBeLessThan(1e-6)
    expect(worst).toBeGreaterThan(0)
  })

  test('is refused when magnitudes pass the range, and then nothing is added', async () => {
    const engine = await start()
    const before = await sumsAfter(engine, [batchOf(1)])
    const steep = { ...batchOf(2), targetWeights: batchOf(2).targetWeights.map((w) => w * 1e7) }
    await expect(engine.forwardBackward(steep, CROSS_ENTROPY)).rejects.toMatchObject({ code: 'E_TRAINER_RANGE' })
    const large = new BigInt64Array(before.length).fill(2n ** 61n)
    await expect(engine.addGradients([large, large])).rejects.toMatchObject({ code: 'E_TRAINER_RANGE' })
    await expect(engine.addGradients([large.slice(1)])).rejects.toMatchObject({ code: 'E_TRAINER_BATCH' })
    expect(text(await engine.exportGradients())).toBe(text(before))
  })
})

describe('reads beside the work', () => {
  test('do not wait for a micro-step, and do not see it', async () => {
    const engine = await start()
    const before = await sumsAfter(engine, [batchOf(1)])
    const weights = await engine.exportWeights()
    const state = { isDone: false }
    const long = pack([
      { ids: randomIds(3, 511), from: 1 },
      { ids: randomIds(4, 511), from: 1 },
    ])
    const work = async (): Promise<void> => {
      await Promise.all(Array.from({ length: 5 }, () => engine.forwardBackward(long, PPO)))
      state.isDone = true
    }
    const step = work()
    const seen = [await engine.exportWeights(), await engine.exportGradients()].map(text)
    expect(state.isDone).toBe(false)
    expect(seen).toEqual([weights, before].map(text))
    await step
    expect(text(await engine.exportGradients())).not.toBe(text(before))
  })

  test('wait for changes that were asked for before', async () => {
    const engine = await start()
    await engine.forwardBackward(batchOf(1), PPO)
    const old = text(await engine.exportWeights())
    const step = engine.optimizerStep(ADAM)
    const [weights, sums] = [text(await engine.exportWeights()), await engine.exportGradients()]
    await step
    expect(weights).not.toBe(old)
    expect(weights).toBe(text(await engine.exportWeights()))
    expect(sums.every((x) => x === 0n)).toBe(true)
  })

  test('give whole gradients while micro-steps end, and whole weights while the optimizer steps', async () => {
    const engine = await start({ threads: 2 })
    const twin = await start()
    const batches = Array.from({ length: 60 }, (_, i) => batchOf(i % 5, 8))
    const sums = new Set([text(await twin.exportGradients())])
    const weights = new Set([text(await twin.exportWeights())])
    const rng = seededRng(1)
    const work: (() => Promise<unknown>)[] = []
    for (const batch of batches) {
      work.push(() => engine.forwardBackward(batch, PPO))
      await twin.forwardBackward(batch, PPO)
      sums.add(text(await twin.exportGradients()))
      if (rng.next() > 0.2) continue
      work.push(() => engine.optimizerStep(ADAM))
      await twin.optimizerStep(ADAM)
      weights.add(text(await twin.exportWeights()))
      sums.add(text(await twin.exportGradients()))
    }
    const state = { isDone: false }
    const run = (async () => {
      for (const step of work) await step()
      state.isDone = true
    })()
    const seen = { sums: new Set<string>(), weights: new Set<string>() }
    while (!state.isDone) {
      seen.sums.add(text(await engine.exportGradients()))
      seen.weights.add(text(await engine.exportWeights()))
      await new Promise((resolve) => setImmediate(resolve))
    }
    await run
    expect([...seen.sums].filter((s) => !sums.has(s))).toEqual([])
    expect([...seen.weights].filter((w) => !weights.has(w))).toEqual([])
    expect(seen.sums.size).toBeGreaterThan(10)
    expect(seen.weights.size).toBeGreaterThan(3)
  })
})
