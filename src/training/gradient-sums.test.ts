import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { addSums, gradientOf, type GradientSums, sumsOf, totalBound } from './gradient-sums.ts'

const P = 6
/** Magnitudes from 1e-30 to 1e3 side by side, exact ties between quanta, cancelling pairs. */
const element = fc.oneof(
  fc.float({ noNaN: true, min: -1000, max: 1000 }),
  fc.tuple(fc.integer({ min: -4095, max: 4095 }), fc.integer({ min: -62, max: -10 })).map(([n, e]) => n * 2 ** e),
  fc.constantFrom(0, -0, 1e-30, -1e-30, 2 ** -49, -(2 ** -49), 3 * 2 ** -49, 8, -8, 999.25, -999.25),
)
const gradient = fc.array(element, { minLength: P, maxLength: P }).map((values) => Float32Array.from(values))
const gradients = fc.array(gradient, { minLength: 1, maxLength: 12 })

const empty = (): GradientSums => new BigInt64Array(P + 1)

/** The exact sum as an integer of 2^-149, the last place of the smallest float32. */
function exact(values: readonly number[]): bigint {
  return values.reduce((sum, x) => {
    let [units, shift] = [x, 0]
    while (!Number.isInteger(units)) [units, shift] = [units * 2, shift + 1]
    return sum + (BigInt(units) << BigInt(149 - shift))
  }, 0n)
}

describe('sums of gradients', () => {
  test('have the same bits for any assignment to cells, any order, and any grouping of the reduction', () => {
    const assigned = gradients.chain((all) =>
      fc.record({
        all: fc.constant(all),
        cells: fc.array(fc.nat(3), { minLength: all.length, maxLength: all.length }),
        order: fc.shuffledSubarray([...all.keys()], { minLength: all.length }),
        reduction: fc.shuffledSubarray([1, 2, 3], { minLength: 3 }),
      }),
    )
    fc.assert(
      fc.property(assigned, ({ all, cells, order, reduction }) => {
        const alone = empty()
        for (const g of all) addSums(alone, [sumsOf(g)])
        const of = [empty(), empty(), empty(), empty()] as const
        for (const i of order) addSums(of[(cells[i] ?? 0) as 0], [sumsOf(all[i] ?? new Float32Array(P))])
        addSums(of[0], [of[reduction[0] as 1], of[reduction[1] as 2]])
        addSums(of[0], [of[reduction[2] as 3]])
        expect(of[0]).toEqual(alone)
      }),
      { numRuns: 500 },
    )
  })

  test('are within half a quantum for each micro-step of the exact sum, and exact from 2^-25 on', () => {
    fc.assert(
      fc.property(gradients, (all) => {
        const sums = empty()
        for (const g of all) addSums(sums, [sumsOf(g)])
        for (let i = 0; i < P; i++) {
          const column = all.map((g) => g[i] ?? 0)
          const error = ((sums[i] ?? 0n) << 101n) - exact(column)
          const rounded = column.filter((x) => x !== 0 && Math.abs(x) < 2 ** -25).length
          expect(error <= BigInt(rounded) << 100n && error >= -(BigInt(rounded) << 100n)).toBe(true)
        }
      }),
      { numRuns: 500 },
    )
  })

  test('become the float32 nearest to the sum', () => {
    fc.assert(
      fc.property(fc.bigInt(-(2n ** 62n), 2n ** 62n), (quanta) => {
        const [value = NaN] = gradientOf(BigInt64Array.of(quanta, 0n))
        const distance = (x: number): bigint => {
          const d = exact([x]) - (quanta << 101n)
          return d < 0n ? -d : d
        }
        const bits = new Int32Array(Float32Array.of(value).buffer)[0] ?? 0
        const neighbours = new Float32Array(Int32Array.of(bits - 1, bits + 1).buffer)
        for (const other of neighbours) {
          if (!Number.isFinite(other)) continue
          expect(distance(value) <= distance(other)).toBe(true)
          // Between two equally near ones the even bit wins.
          if (distance(value) === distance(other)) expect(bits % 2).toBe(0)
        }
      }),
      { numRuns: 500, examples: [[1n], [2n ** 24n + 1n], [2n ** 55n + 2n ** 31n], [2n ** 61n + 2n ** 37n + 1n]] },
    )
  })

  test('differ from a float32 accumulator, whose sum depends on the order', () => {
    const all = [1e8, 1, -1e8, 1].map((x) => Float32Array.of(x / 2 ** 17))
    const plain = (order: readonly number[]): number =>
      order.reduce((sum, i) => Math.fround(sum + (all[i]?.[0] ?? NaN)), 0) * 2 ** 17
    expect([plain([0, 1, 2, 3]), plain([0, 2, 1, 3])]).toEqual([1, 2])
    const sums = new BigInt64Array(2)
    for (const g of all) addSums(sums, [sumsOf(g)])
    expect((gradientOf(sums)[0] ?? NaN) * 2 ** 17).toBe(2)
  })

  test('refuse what could overflow whatever the order, and what is no number, and then change nothing', () => {
    const range = expect.objectContaining({ code: 'E_TRAINER_RANGE' })
    const large = sumsOf(Float32Array.of(6000, -1))
    const sums = new BigInt64Array(3)
    addSums(sums, [large, large])
    const before = sums.slice()
    expect(() => addSums(sums, [sumsOf(Float32Array.of(-6000, 1))])).toThrow(range)
    expect(() => addSums(sums, [sumsOf(Float32Array.of(1, 1)), large])).toThrow(range)
    expect(sums).toEqual(before)
    expect(() => sumsOf(Float32Array.of(0, 16_384))).toThrow(range)
    expect(() => totalBound([2n ** 62n])).toThrow(range)
    expect(() => totalBound([-1n])).toThrow(range)
    for (const bad of [NaN, Infinity, -Infinity]) {
      expect(() => sumsOf(Float32Array.of(1, bad))).toThrow(expect.objectContaining({ code: 'E_TRAINER_NONFINITE' }))
    }
  })
})
