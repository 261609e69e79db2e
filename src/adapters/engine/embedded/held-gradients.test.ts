import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, expect, test } from 'vitest'
import {
  CROSS_ENTROPY,
  closeEngines,
  pack,
  randomIds,
  score,
  start,
} from '../../../../test/support/embedded-engines.ts'
import type { MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
import { gradientOf } from '../../../training/gradient-sums.ts'
import type { EmbeddedEngine } from './embedded-engine.ts'

const PPO: Objective = { kind: 'policy-gradient', clipLow: 0.2, clipHigh: 0.28, ratioBound: 8, entropyWeight: 0 }
const ADAM: OptimizerParams = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  gradientClip: 1,
}
const folder = mkdtempSync(join(tmpdir(), 'gyre-held-'))
afterAll(() => rmSync(folder, { recursive: true }))
afterEach(closeEngines)

const BATCH = pack([
  { ids: randomIds(1, 90), from: 4 },
  { ids: randomIds(2, 60), from: 4 },
])
const withAdvantage = (batch: MicroBatch, advantage: number): MicroBatch => ({
  ...batch,
  targetAdvantages: batch.targetAdvantages.map(() => advantage),
})

/** Behavior log-probs that give each target the ratio exp(shift), the shifts taken in turn. */
async function shifted(engine: EmbeddedEngine, shifts: readonly number[]): Promise<MicroBatch> {
  const logprobs = await score(engine, BATCH)
  await engine.zeroGradients()
  return {
    ...BATCH,
    targetBehaviorLogprobs: Float32Array.from(logprobs, (logp, i) => logp - (shifts[i % shifts.length] ?? 0)),
  }
}
const NEAR = [0, 0.1, -0.15, 0.2]
const FAR = [0, 0.1, 0.6, -0.6, 3]

async function directly(engine: EmbeddedEngine, batch: MicroBatch): Promise<Float32Array> {
  await engine.zeroGradients()
  await engine.forwardBackward(batch, PPO)
  const gradient = gradientOf(await engine.exportGradients())
  await engine.zeroGradients()
  return gradient
}

function distance(a: Float32Array, b: Float32Array): number {
  const scale = a.reduce((top, g) => Math.max(top, Math.abs(g)), 0)
  expect(scale).toBeGreaterThan(0)
  return a.reduce((top, g, i) => Math.max(top, Math.abs(g - (b[i] ?? NaN))), 0) / scale
}

test.each([1.7, -0.3])('inside the clip, a held gradient serves both signs: advantage %d', async (advantage) => {
  const engine = await start()
  const batch = await shifted(engine, NEAR)
  const expected = await directly(engine, withAdvantage(batch, advantage))
  for (const sign of [1, -1]) {
    await engine.zeroGradients()
    const held = await engine.held.hold('k', withAdvantage(batch, sign), PPO)
    expect(held).toMatchObject({ outsideTokens: 0, clippedTokens: 0, maskedTokens: 0 })
    expect((await engine.exportGradients()).every((g) => g === 0n)).toBe(true)
    await engine.held.apply('k', advantage)
    expect(distance(expected, gradientOf(await engine.exportGradients()))).toBeLessThan(1e-6)
  }
})

test.each([1.7, -0.3])('beyond the clip, it serves the sign it was computed for: advantage %d', async (advantage) => {
  const engine = await start()
  const batch = await shifted(engine, FAR)
  const sign = Math.sign(advantage)
  const expected = await directly(engine, withAdvantage(batch, advantage))
  const held = await engine.held.hold('right', withAdvantage(batch, sign), PPO)
  await engine.held.hold('wrong', withAdvantage(batch, -sign), PPO)
  expect(held.outsideTokens).toBeGreaterThan(held.clippedTokens)
  expect(Math.min(held.clippedTokens, held.maskedTokens)).toBeGreaterThan(0)
  await expect(engine.held.apply('wrong', advantage)).rejects.toMatchObject({ code: 'E_TRAINER_HELD_SIGN' })
  expect((await engine.exportGradients()).every((g) => g === 0n)).toBe(true)
  await engine.held.apply('right', advantage)
  expect(distance(expected, gradientOf(await engine.exportGradients()))).toBeLessThan(1e-6)
})

test('a held gradient counts once, and joins what is accumulated already', async () => {
  const engine = await start()
  const batch = await shifted(engine, NEAR)
  await engine.forwardBackward(withAdvantage(batch, 2), PPO)
  await engine.held.hold('k', withAdvantage(batch, 1), PPO)
  await engine.held.apply('k', 3)
  await expect(engine.held.apply('k', 3)).rejects.toMatchObject({ code: 'E_TRAINER_NOT_HELD' })
  const gradient = gradientOf(await engine.exportGradients())
  expect(distance(await directly(engine, withAdvantage(batch, 5)), gradient)).toBeLessThan(1e-6)
})

test('a scale that leaves the range adds nothing and keeps the gradient', async () => {
  const engine = await start()
  const batch = withAdvantage(await shifted(engine, NEAR), 1)
  await engine.held.hold('k', batch, PPO)
  await expect(engine.held.apply('k', 1e9)).rejects.toMatchObject({ code: 'E_TRAINER_RANGE' })
  await expect(engine.held.apply('k', NaN)).rejects.toMatchObject({ code: 'E_TRAINER_NONFINITE' })
  expect((await engine.exportGradients()).every((g) => g === 0n)).toBe(true)
  await engine.held.apply('k', 1)
  const gradient = gradientOf(await engine.exportGradients())
  expect(distance(await directly(engine, batch), gradient)).toBeLessThan(1e-6)
})

test('every change of weights, and zeroing, drop what is held', async () => {
  const engine = await start()
  const batch = withAdvantage(await shifted(engine, NEAR), 1)
  await engine.save(folder)
  const weights = await engine.exportWeights()
  const drops: readonly (() => Promise<unknown>)[] = [
    () => engine.zeroGradients(),
    () => engine.optimizerStep(ADAM),
    () => engine.importWeights(weights, 1),
    () => engine.load(folder, 2),
    () => engine.held.drop(),
    () => engine.held.drop(['other', 'k']),
  ]
  for (const drop of drops) {
    await engine.held.hold('k', batch, PPO)
    await engine.held.hold('kept', batch, PPO)
    await drop()
    await expect(engine.held.apply('k', 1)).rejects.toMatchObject({ code: 'E_TRAINER_NOT_HELD' })
  }
  await engine.held.apply('kept', 1)
})

test('what is not linear in one advantage is refused, and so is one gradient too many', async () => {
  const engine = await start()
  const unit = withAdvantage(await shifted(engine, NEAR), 1)
  const mixed = { ...unit, targetAdvantages: unit.targetAdvantages.map((_, i) => (i % 2 === 0 ? 1 : -1)) }
  for (const [batch, objective] of [
    [unit, CROSS_ENTROPY],
    [unit, { ...PPO, entropyWeight: 0.01 }],
    [mixed, PPO],
    [withAdvantage(unit, 0.5), PPO],
  ] as const) {
    await expect(engine.held.hold('k', batch, objective)).rejects.toMatchObject({ code: 'E_TRAINER_NOT_HOLDABLE' })
  }
  const small = withAdvantage(pack([{ ids: randomIds(1, 6), from: 1 }]), 1)
  for (let i = 0; i < 64; i++) await engine.held.hold(`k${i}`, small, PPO)
  await engine.held.hold('k5', small, PPO)
  await expect(engine.held.hold('k64', small, PPO)).rejects.toMatchObject({ code: 'E_TRAINER_HELD_FULL' })
  await engine.held.apply('k63', 1)
  await engine.held.hold('k64', small, PPO)
})
