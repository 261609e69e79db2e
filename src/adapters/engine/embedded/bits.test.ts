import { afterEach, describe, expect, test } from 'vitest'
import {
  CROSS_ENTROPY,
  closeEngines,
  microBatch,
  pack,
  randomIds,
  sample,
  score,
  SHAPE,
  start,
} from '../../../../test/support/embedded-engines.ts'
import type { OptimizerParams } from '../../../training/batch.ts'

const ADAM: OptimizerParams = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  gradientClip: 1,
}

afterEach(closeEngines)

describe('the sampler and the trainer give the same log-prob bits', () => {
  test.each([
    ['two heads a key head', SHAPE, 1],
    ['two threads', SHAPE, 2],
    ['one head a key head', { ...SHAPE, kvHeads: 4 }, 1],
    ['four heads a key head, odd vocabulary', { ...SHAPE, kvHeads: 1, vocabSize: 61 }, 2],
    ['wide heads', { ...SHAPE, heads: 2, kvHeads: 1, headDim: 32 }, 1],
    ['one layer', { ...SHAPE, layers: 1, hiddenSize: 24 }, 1],
  ])('%s: alone, together, after chunks, behind others, in a tree', async (_, shape, threads) => {
    const engine = await start({ model: shape, threads })
    const prompt = randomIds(1, 201)
    const prompts = [prompt, randomIds(2, 3), randomIds(3, 77), [...prompt, ...randomIds(4, 40)], randomIds(5, 150)]
    const alone = await sample(engine, prompt)
    const all = await Promise.all(prompts.map((p, i) => sample(engine, p, { seed: i + 1 })))
    expect(all[0]?.ids).toEqual(alone.ids)
    expect(all[0]?.logprobs).toEqual(alone.logprobs)

    const rows = all.map((s, i) => ({ ids: [...(prompts[i] ?? []), ...s.ids], from: prompts[i]?.length ?? 0 }))
    for (const [i, row] of rows.entries()) expect(await score(engine, pack([row]))).toEqual(all[i]?.logprobs)
    const shifted = await score(engine, pack([{ ids: [1], from: 1 }, ...rows.slice(0, 3)]))
    expect(shifted).toEqual(all.slice(0, 3).flatMap((s) => s.logprobs))
  })

  test('a branch of a packed tree has the bits of its path alone', async () => {
    const engine = await start()
    const trunk = randomIds(6, 101)
    const [a, b] = await Promise.all([sample(engine, trunk, { seed: 21 }), sample(engine, trunk, { seed: 22 })])
    const c = await sample(engine, [...trunk, ...a.ids.slice(0, 13)], { seed: 23 })
    const t = 101 + 60 * 3
    const ids = [...trunk, ...a.ids, ...c.ids, ...b.ids]
    const positions = ids.map((_, i) => (i < 161 ? i : i < 221 ? 114 + i - 161 : 101 + i - 221))
    const ends = ids.map((_, i) => (i < 101 ? t : i < 114 ? 221 : i < 161 ? 161 : i < 221 ? 221 : t))
    const targets = ids.map((_, i) => i).slice(101)
    const scores = await score(
      engine,
      microBatch(ids, positions, ends, targets, (i) => (i === 161 ? 113 : i === 221 ? 100 : i - 1)),
    )
    expect(scores).toEqual([...a.logprobs, ...c.logprobs, ...b.logprobs])
  })

  test('one and two threads reach the same weights in five AdamW steps, and sample the same', async () => {
    const results = await Promise.all(
      [1, 2].map(async (threads) => {
        const engine = await start({ threads })
        const batch = pack([
          { ids: randomIds(1, 300), from: 5 },
          { ids: randomIds(2, 130), from: 60 },
        ])
        const norms: number[] = []
        for (let i = 0; i < 5; i++) {
          await engine.forwardBackward(batch, CROSS_ENTROPY)
          norms.push((await engine.optimizerStep(ADAM)).gradientNorm)
        }
        return { norms, weights: await engine.exportWeights(), sampled: await sample(engine, randomIds(1, 40)) }
      }),
    )
    expect(results[0]).toEqual(results[1])
  })
})
