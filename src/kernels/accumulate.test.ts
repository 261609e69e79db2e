import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { gradientOf, sumsOf } from '../training/gradient-sums.ts'
import { accumulateGradient, roundSums, zeroSums } from './accumulate.ts'
import { createMachine } from './machine.ts'
import { planMemory } from './plan.ts'
import { allocateMemory, compileKernels, instantiateKernels } from './wasm.ts'

const shape = {
  vocabSize: 13,
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
const { count, paddedCount } = plan.layout
const gradient = machine.f32.subarray(plan.gradients / 4, plan.gradients / 4 + paddedCount)
const sums = machine.i64.subarray(plan.sums / 8, plan.sums / 8 + count + 1)

/** `largest` decides between the two ways of rounding. */
const elements = (largest: number): fc.Arbitrary<number[]> =>
  fc.array(
    fc.oneof(
      fc.float({ noNaN: true, min: -largest, max: largest }),
      fc.tuple(fc.integer({ min: -4095, max: 4095 }), fc.integer({ min: -70, max: -10 })).map(([n, e]) => n * 2 ** e),
      fc.constantFrom(-0, 1e-45, -1e-45, 2 ** -49, -(2 ** -49), 3 * 2 ** -49, 5 * 2 ** -49, -3 * 2 ** -49),
    ),
    { minLength: 64, maxLength: 64 },
  )

/** A gradient whose entries repeat the given ones. */
function place(values: readonly number[]): Float32Array {
  const whole = Float32Array.from({ length: count }, (_, i) => values[i % values.length] ?? 0)
  gradient.set(whole)
  return whole
}

test.each([7.99, 8, 4000])('the kernels add the integers that the definition gives, magnitudes up to %d', (largest) => {
  fc.assert(
    fc.property(elements(Math.fround(largest)), elements(Math.fround(largest)), (a, b) => {
      zeroSums(machine)
      const expected = new BigInt64Array(count + 1)
      for (const values of [a, b]) {
        const added = sumsOf(place(values))
        expect(accumulateGradient(machine)).toBeUndefined()
        expected.forEach((x, i) => (expected[i] = x + (added[i] ?? 0n)))
      }
      expect(sums.slice()).toEqual(expected)
      expect(gradient.every((g) => g === 0)).toBe(true)
      roundSums(machine)
      expect(gradient.slice(0, count)).toEqual(gradientOf(expected))
      expect(sums.every((x) => x === 0n)).toBe(true)
      gradient.fill(0)
    }),
    { numRuns: 40 },
  )
})

test.each([
  ['NaN', NaN, 'nonfinite'],
  ['an infinity', -Infinity, 'nonfinite'],
  ['too much at once', 20_000, 'range'],
  ['too much together', 10_000, 'range'],
] as const)('a gradient with %s is refused, and nothing is added', (_, value, refusal) => {
  zeroSums(machine)
  place([1, -9000])
  expect(accumulateGradient(machine)).toBeUndefined()
  const before = sums.slice()
  place([1])
  gradient[count - 3] = value
  expect(accumulateGradient(machine)).toBe(refusal)
  expect(sums.slice()).toEqual(before)
  expect(gradient.every((g) => g === 0)).toBe(true)
})
