import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { expect, test } from 'vitest'
import { chooseToken, drawAt, type Truncation } from './choose.ts'
import { createMachine } from './machine.ts'
import { planMemory } from './plan.ts'
import { allocateMemory, compileKernels, instantiateKernels } from './wasm.ts'

const V = 13
const shape = {
  vocabSize: V,
  hiddenSize: 8,
  layers: 1,
  heads: 1,
  kvHeads: 1,
  headDim: 8,
  ffSize: 8,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
const plan = planMemory(shape, { threads: 1, slots: 1, maxContext: 8, maxTrainTokens: 8, stepRows: 8 })
const memory = allocateMemory(plan.bytes)
const wasm = readFileSync(resolve(import.meta.dirname, '../../dist/kernels/engine.wasm'))
const machine = createMachine(instantiateKernels(compileKernels(wasm), memory), plan, memory, 0)
const logits = Array.from({ length: V }, (_, i) => Math.sin(i * 7) * 2)
machine.f32.set(logits, plan.sample.logits / 4)
const lse = machine.k.logSumExp(plan.sample.logits, V, plan.layout.paddedVocab)

/** Shares of each token over evenly spread draws. */
function shares(t: Truncation): number[] {
  const n = 20_000
  const counts = Array(V).fill(0) as number[]
  for (let i = 0; i < n; i++) {
    const id = chooseToken(machine, plan.sample.logits, t, (i + 0.5) / n)
    counts[id] = (counts[id] ?? 0) + 1
  }
  return counts.map((c) => c / n)
}
function softmax(temperature: number, kept: (id: number) => boolean = () => true): number[] {
  const w = logits.map((z, id) => (kept(id) ? Math.exp(z / temperature) : 0))
  const total = w.reduce((a, b) => a + b, 0)
  return w.map((x) => x / total)
}
const rank = (id: number): number => logits.filter((z) => z > (logits[id] ?? 0)).length

test('the normalizer agrees with float64', () => {
  expect(lse).toBeCloseTo(Math.log(logits.reduce((s, z) => s + Math.exp(z), 0)), 6)
})

test.each([
  ['temperature 1', { temperature: 1, topP: 1, topK: 0 }, softmax(1)],
  ['temperature 0.5', { temperature: 0.5, topP: 1, topK: 0 }, softmax(0.5)],
  ['top-k 4', { temperature: 1, topP: 1, topK: 4 }, softmax(1, (id) => rank(id) < 4)],
  ['top-k 20 is everything', { temperature: 2, topP: 1, topK: 20 }, softmax(2)],
])('draws with %s have the shares of the softmax', (_, truncation, expected) => {
  shares(truncation).forEach((share, id) => expect(share).toBeCloseTo(expected[id] ?? 0, 3))
})

test('top-p keeps the smallest set that holds the mass', () => {
  const p = softmax(1)
  const mass = (id: number): number => p.reduce((s, x, i) => (rank(i) < rank(id) ? s + x : s), 0)
  const expected = softmax(1, (id) => mass(id) < 0.7)
  expect(expected.filter((x) => x > 0).length).toBeLessThan(V - 2)
  shares({ temperature: 1, topP: 0.7, topK: 0 }).forEach((s, id) => expect(s).toBeCloseTo(expected[id] ?? 0, 3))
})

test('draws are uniform over positions and over seeds', () => {
  for (const at of [(i: number) => drawAt(7, i), (i: number) => drawAt(i, 7)]) {
    const bins = Array(10).fill(0) as number[]
    for (let i = 0; i < 20_000; i++) {
      const bin = Math.floor(at(i) * 10)
      bins[bin] = (bins[bin] ?? 0) + 1
    }
    for (const count of bins) expect(Math.abs(count - 2000)).toBeLessThan(200)
  }
  expect(drawAt(1, 2)).not.toBe(drawAt(2, 1))
})
