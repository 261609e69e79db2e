import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import {
  CROSS_ENTROPY,
  closeEngines,
  pack,
  randomIds,
  sample,
  score,
  SHAPE,
  start,
} from '../../../../test/support/embedded-engines.ts'
import { hasCode } from '../../../core/errors.ts'
import type { OptimizerParams } from '../../../training/batch.ts'
import type { EmbeddedEngine } from './embedded-engine.ts'

const ADAM: OptimizerParams = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  gradientClip: 1,
}

const folder = mkdtempSync(join(tmpdir(), 'gyre-engine-'))
afterAll(() => rmSync(folder, { recursive: true }))
afterEach(closeEngines)

const isModelError = (e: unknown): boolean => hasCode(e, 'E_ENGINE_MODEL')

describe('training', () => {
  test('a gradient is exported, added and zeroed', async () => {
    const engine = await start()
    const batch = pack([{ ids: randomIds(1, 100), from: 1 }])
    await engine.forwardBackward(batch, CROSS_ENTROPY)
    const gradient = await engine.exportGradients()
    expect(gradient).toHaveLength(engine.parameterCount + 1)
    await engine.addGradients([gradient, gradient])
    expect(await engine.exportGradients()).toEqual(gradient.map((g) => g * 3n))
    await engine.zeroGradients()
    expect((await engine.exportGradients()).every((g) => g === 0n)).toBe(true)
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
    const gradient = await engine.exportGradients()
    await engine.importWeights(good.slice().fill(NaN, 0, 40), 1)
    await expect(score(engine, batch)).rejects.toSatisfy((e) => hasCode(e, 'E_TRAINER_NONFINITE'))
    await expect(sample(engine, [1, 2, 3])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_NONFINITE'))
    await engine.importWeights(good, 2)
    expect(await engine.exportGradients()).toEqual(gradient)
    expect(await score(engine, batch)).toEqual(expected)
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
