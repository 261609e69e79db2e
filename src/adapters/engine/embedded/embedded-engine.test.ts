import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import { hasCode } from '../../../core/errors.ts'
import { executionId } from '../../../core/ids.ts'
import { seededRng } from '../../../core/rng.ts'
import type { ModelShape } from '../../../kernels/shape.ts'
import type { SamplingParams } from '../../../ports/engine.ts'
import type { MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
import { createEmbeddedEngine, type EmbeddedEngine, type EmbeddedEngineOptions } from './embedded-engine.ts'

const SHAPE: ModelShape = {
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
const CROSS_ENTROPY: Objective = { kind: 'cross-entropy' }
const ADAM: OptimizerParams = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  gradientClip: 1,
}

const open: EmbeddedEngine[] = []
async function start(options: Partial<EmbeddedEngineOptions> = {}): Promise<EmbeddedEngine> {
  const sizes = { slots: 8, maxContext: 512, maxTrainTokens: 1024, seed: 9 }
  const engine = await createEmbeddedEngine({ model: SHAPE, ...sizes, ...options })
  open.push(engine)
  return engine
}
afterEach(() => Promise.all(open.splice(0).map((e) => e.close())))
const folder = mkdtempSync(join(tmpdir(), 'gyre-engine-'))
afterAll(() => rmSync(folder, { recursive: true }))

const isModelError = (e: unknown): boolean => hasCode(e, 'E_ENGINE_MODEL')

interface Sampled {
  readonly ids: number[]
  readonly logprobs: number[]
  readonly versions: number[]
  finishReason?: string
  cachedTokens: number
}
async function sample(
  engine: EmbeddedEngine,
  prompt: readonly number[],
  sampling: Partial<SamplingParams> = {},
  signal = new AbortController().signal,
  onTokens?: (so_far: Sampled) => void,
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

function randomIds(seed: number, length: number): number[] {
  const rng = seededRng(seed)
  return Array.from({ length }, () => rng.below(SHAPE.vocabSize))
}

/** A sequence whose tokens from `from` on are targets. */
interface Row {
  readonly ids: readonly number[]
  readonly from: number
}
/** Rows behind one another. */
function pack(rows: readonly Row[]): MicroBatch {
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
function microBatch(
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
async function score(engine: EmbeddedEngine, batch: MicroBatch): Promise<number[]> {
  return [...(await engine.forwardBackward(batch, CROSS_ENTROPY)).logprobs]
}

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

describe('sampling', () => {
  test('a continuation from the prompt and a part of the answer gives the rest of it', async () => {
    const engine = await start()
    const prompt = randomIds(1, 30)
    const whole = await sample(engine, prompt, { temperature: 0.8, topP: 0.9, topK: 20 })
    const other = await start()
    const rest = await sample(other, [...prompt, ...whole.ids.slice(0, 25)], {
      temperature: 0.8,
      topP: 0.9,
      topK: 20,
      maxTokens: 35,
    })
    expect(rest.ids).toEqual(whole.ids.slice(25))
    expect(rest.logprobs).toEqual(whole.logprobs.slice(25))
  })

  test('a shared prefix is computed once, and changes no bit', async () => {
    const engine = await start({ slots: 3 })
    const system = randomIds(1, 150)
    const first = await sample(engine, [...system, 0, ...randomIds(2, 20)])
    expect(first.cachedTokens).toBe(0)
    const prompts = [3, 4, 5].map((seed) => [...system, seed, ...randomIds(seed, 30)])
    const reused = await Promise.all(prompts.map((p) => sample(engine, p)))
    expect(reused.map((s) => s.cachedTokens)).toEqual([150, 150, 150])
    for (const [i, prompt] of prompts.entries()) {
      const fresh = await sample(await start({ slots: 1 }), prompt)
      expect(fresh.cachedTokens).toBe(0)
      expect(reused[i]?.ids).toEqual(fresh.ids)
      expect(reused[i]?.logprobs).toEqual(fresh.logprobs)
    }
  })

  test('prompts that come together compute their shared prefix once', async () => {
    const engine = await start()
    const system = randomIds(1, 300)
    const all = await Promise.all(
      [1, 2, 3, 4].map((x) => sample(engine, [...system, x, ...randomIds(x, 20)], { seed: x })),
    )
    const cached = all.map((s) => s.cachedTokens).sort((a, b) => a - b)
    expect(cached[0]).toBe(0)
    expect(cached[1]).toBeGreaterThan(300 - 32)
  })

  test('the next turn of a conversation reuses the whole of the last one', async () => {
    const engine = await start()
    const prompt = randomIds(1, 40)
    const turn = await sample(engine, prompt)
    const next = await sample(engine, [...prompt, ...turn.ids, ...randomIds(2, 9)])
    expect(next.cachedTokens).toBe(99)
  })

  test('more generations than slots all finish', async () => {
    const engine = await start({ slots: 2 })
    const all = await Promise.all([...Array(9).keys()].map((i) => sample(engine, randomIds(i, 10 + i), { seed: i })))
    expect(all.map((s) => s.ids.length)).toEqual(Array(9).fill(60))
  })

  test('a stop token ends the answer and is part of it', async () => {
    const engine = await start()
    const free = await sample(engine, randomIds(1, 10))
    const stop = free.ids[20] ?? 0
    const stopped = await sample(engine, randomIds(1, 10), { stopTokenIds: [stop] })
    expect(stopped.finishReason).toBe('stop')
    expect(stopped.ids).toEqual(free.ids.slice(0, free.ids.indexOf(stop) + 1))
  })

  test('an answer ends with the context, and a prompt that fills it is refused', async () => {
    const engine = await start({ maxContext: 64 })
    const last = await sample(engine, randomIds(1, 60))
    expect([last.ids.length, last.finishReason]).toEqual([4, 'length'])
    await expect(sample(engine, randomIds(1, 64))).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_OVERLONG'))
    await expect(sample(engine, [])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_REQUEST'))
    await expect(sample(engine, [99])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_REQUEST'))
  })

  test('a cancelled generation ends with its code and frees its slot', async () => {
    const engine = await start({ slots: 1 })
    const controller = new AbortController()
    let seen = 0
    const cancelled = sample(engine, randomIds(1, 20), { maxTokens: 400 }, controller.signal, (s) => {
      seen = s.ids.length
      controller.abort()
    })
    await expect(cancelled).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CANCELLED'))
    expect(seen).toBeGreaterThan(0)
    expect((await sample(engine, randomIds(2, 20))).ids).toHaveLength(60)
    await expect(sample(engine, [1], {}, controller.signal)).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CANCELLED'))
  })

  test('temperature 0 takes the likeliest token, and a low temperature comes close to it', async () => {
    const engine = await start()
    const greedy = await sample(engine, randomIds(1, 20), { temperature: 0 })
    const cold = await sample(engine, randomIds(1, 20), { temperature: 1e-4 })
    const top1 = await sample(engine, randomIds(1, 20), { topK: 1 })
    expect(cold.ids).toEqual(greedy.ids)
    expect(top1.ids).toEqual(greedy.ids)
  })

  test('new weights drop every cache, stamp tokens, and carry a running generation on', async () => {
    const engine = await start()
    const prompt = randomIds(1, 50)
    const before = await sample(engine, prompt)
    expect(new Set(before.versions)).toEqual(new Set([0]))
    const other = await (await start({ seed: 77 })).exportWeights()
    let published: Promise<void> | undefined
    const running = await sample(engine, randomIds(8, 50), { maxTokens: 400 }, undefined, () => {
      published ??= engine.importWeights(other, 3)
    })
    await published
    expect(new Set(running.versions)).toEqual(new Set([0, 3]))
    const after = await sample(engine, prompt)
    expect(after.cachedTokens).toBe(0)
    expect(new Set(after.versions)).toEqual(new Set([3]))
    expect(after.logprobs).toEqual((await sample(await start({ seed: 77 }), prompt)).logprobs)
    const switched = running.versions.indexOf(3)
    const path = [...randomIds(8, 50), ...running.ids]
    expect((await score(engine, pack([{ ids: path, from: 50 + switched }]))).slice(0, 30)).toEqual(
      running.logprobs.slice(switched, switched + 30),
    )
    expect(engine.policyVersion).toBe(3)
  })
})

describe('training', () => {
  test('a gradient is exported, added and zeroed', async () => {
    const engine = await start()
    const batch = pack([{ ids: randomIds(1, 100), from: 1 }])
    await engine.forwardBackward(batch, CROSS_ENTROPY)
    const gradient = await engine.exportGradients()
    expect(gradient).toHaveLength(engine.parameterCount)
    await engine.addGradients(gradient)
    expect(await engine.exportGradients()).toEqual(gradient.map((g) => g * 2))
    await engine.zeroGradients()
    expect((await engine.exportGradients()).every((g) => g === 0)).toBe(true)
  })

  test('a few steps learn a sequence by heart', async () => {
    const engine = await start()
    const batch = pack([{ ids: randomIds(1, 64), from: 1 }])
    const losses: number[] = []
    for (let i = 0; i < 60; i++) {
      losses.push((await engine.forwardBackward(batch, CROSS_ENTROPY)).loss)
      await engine.optimizerStep(ADAM)
    }
    expect(losses[0]).toBeGreaterThan(3)
    expect(losses.at(-1)).toBeLessThan(0.1)
  })

  test('a loss that is not finite is refused and leaves weights and later work whole', async () => {
    const engine = await start()
    const batch = pack([{ ids: randomIds(1, 40), from: 1 }])
    const good = await engine.exportWeights()
    const expected = await score(engine, batch)
    await engine.importWeights(good.slice().fill(NaN, 0, 40), 1)
    await expect(score(engine, batch)).rejects.toSatisfy((e) => hasCode(e, 'E_TRAINER_NONFINITE'))
    await expect(sample(engine, [1, 2, 3])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_NONFINITE'))
    await engine.importWeights(good, 2)
    expect((await engine.exportGradients()).every((g) => g === 0)).toBe(true)
    expect(await score(engine, batch)).toEqual(expected)
    await engine.addGradients(good.slice().fill(Infinity))
    await expect(engine.optimizerStep(ADAM)).rejects.toSatisfy((e) => hasCode(e, 'E_TRAINER_NONFINITE'))
    expect(await engine.exportWeights()).toEqual(good)
  })

  test('a batch beyond the limits, or malformed, is refused', async () => {
    const engine = await start({ maxTrainTokens: 64 })
    const long = pack([{ ids: randomIds(1, 65), from: 1 }])
    await expect(score(engine, long)).rejects.toSatisfy((e) => hasCode(e, 'E_TRAINER_TOO_LONG'))
    const good = pack([{ ids: randomIds(1, 20), from: 1 }])
    const bad = { ...good, targetRows: good.targetRows.map(() => 20) }
    await expect(score(engine, bad)).rejects.toSatisfy((e) => hasCode(e, 'E_TRAINER_BATCH'))
    expect(await score(engine, good)).toHaveLength(19)
  })

  test('a saved run goes on bit for bit, from the folder alone', async () => {
    const engine = await start()
    const batch = pack([{ ids: randomIds(1, 120), from: 1 }])
    const advance = async (e: EmbeddedEngine): Promise<Float32Array> => {
      for (let i = 0; i < 3; i++) {
        await e.forwardBackward(batch, CROSS_ENTROPY)
        await e.optimizerStep(ADAM)
      }
      return e.exportWeights()
    }
    await advance(engine)
    await engine.save(folder)
    expect(readdirSync(folder).sort()).toEqual(['config.json', 'model.safetensors', 'optimizer.safetensors'])
    const expected = await advance(engine)
    expect(await advance(await start({ model: { folder } }))).toEqual(expected)
    const other = await start({ seed: 1 })
    await other.load(folder, 5)
    expect(other.policyVersion).toBe(5)
    expect(await advance(other)).toEqual(expected)
  })

  test('a folder that is no model, or another model, is refused', async () => {
    const empty = mkdtempSync(join(folder, 'empty-'))
    await expect(start({ model: { folder: empty } })).rejects.toSatisfy(isModelError)
    const engine = await start()
    await expect(engine.load(empty, 1)).rejects.toSatisfy(isModelError)
    await engine.save(empty)
    const other = await start({ model: { ...SHAPE, layers: 1 } })
    await expect(other.load(empty, 1)).rejects.toSatisfy(isModelError)
    expect(existsSync(join(empty, 'model.safetensors.partial'))).toBe(false)
    writeFileSync(join(empty, 'model.safetensors'), 'not tensors at all')
    await expect(engine.load(empty, 1)).rejects.toSatisfy(isModelError)
    await expect(start({ model: { ...SHAPE, headDim: 12 } })).rejects.toSatisfy(isModelError)
  })

  test('calls after close end with a code', async () => {
    const engine = await start()
    await engine.close()
    await engine.close()
    await expect(engine.exportWeights()).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CLOSED'))
    await expect(sample(engine, [1])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CLOSED'))
  })
})
