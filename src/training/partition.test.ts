import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { divide, type Part, rowsOf, type TriePaths } from './partition.ts'

/** Random strings over two letters, sorted: neighbors share what they share. */
const texts = fc
  .array(fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 9 }), { maxLength: 9 })
  .map((list) => list.toSorted())
const paths = texts.map(pathsOf)
const budget = fc.integer({ min: 1, max: 40 })

function pathsOf(list: readonly string[]): TriePaths {
  return {
    lengths: list.map((text) => text.length),
    shared: list.map((text, i) => commonPrefix(list[i - 1] ?? '', text)),
  }
}

function commonPrefix(a: string, b: string): number {
  let at = 0
  while (at < a.length && a[at] === b[at]) at++
  return at
}

/** Every way to cut a list between neighbors. */
function cuts(count: number): readonly (readonly Part[])[] {
  if (count === 0) return [[]]
  return Array.from({ length: 2 ** (count - 1) }, (_, bits) => {
    const parts: number[][] = [[0]]
    for (let path = 1; path < count; path++) {
      if ((bits >> (path - 1)) & 1) parts.push([])
      parts.at(-1)?.push(path)
    }
    return parts
  })
}

const isWithin = (all: TriePaths, most: number, part: Part): boolean => part.length === 1 || rowsOf(all, part) <= most
const total = (all: TriePaths, parts: readonly Part[]): number =>
  parts.reduce((sum, part) => sum + rowsOf(all, part), 0)
const largest = (all: TriePaths, parts: readonly Part[]): number =>
  parts.reduce((most, part) => Math.max(most, rowsOf(all, part)), 0)

test('a part has a row for every distinct prefix of its paths, whichever they are', () => {
  fc.assert(
    fc.property(texts, fc.nat(), (list, bits) => {
      const part = [...list.keys()].filter((path) => (bits >> path) & 1)
      const prefixes = part.flatMap((path) => Array.from(list[path] ?? '', (_, i) => list[path]?.slice(0, i + 1)))
      expect(rowsOf(pathsOf(list), part)).toBe(new Set(prefixes).size)
    }),
  )
})

describe('divide', () => {
  test('every path stands in one part, ascending, and no part is over the budget that could be smaller', () => {
    fc.assert(
      fc.property(paths, budget, fc.integer({ min: 1, max: 5 }), (all, most, wanted) => {
        const parts = divide(all, most, wanted)
        expect(parts.flat().toSorted((a, b) => a - b)).toEqual([...all.lengths.keys()])
        for (const part of parts) {
          expect(part).toEqual(part.toSorted((a, b) => a - b))
          expect(isWithin(all, most, part)).toBe(true)
        }
      }),
    )
  })

  test('no way to cut between neighbors needs fewer rows, parts counted as one each', () => {
    fc.assert(
      fc.property(paths, budget, (all, most) => {
        const parts = divide(all, most)
        const best = cuts(all.lengths.length)
          .filter((cut) => cut.every((part) => isWithin(all, most, part)))
          .reduce((least, cut) => Math.min(least, total(all, cut) + cut.length), Infinity)
        expect(total(all, parts) + parts.length).toBeLessThanOrEqual(best)
      }),
    )
  })

  test('paths that share much come together over one that fills a part by itself', () => {
    // The first three share 5 rows; the fourth stands alone and would fit with any of the short ones.
    const all: TriePaths = { lengths: [8, 15, 8, 6], shared: [0, 5, 5, 0] }
    const parts = divide(all, 15)
    expect(new Set(parts.map((part) => part.join('+')))).toEqual(new Set(['0+2', '1', '3']))
  })

  test('also of many paths, where filling each part in turn would copy more', () => {
    // Pairs share 8 of 10 rows, pairs among themselves 2. Three paths fit the budget, but their cuts part pairs.
    const numbers = Array.from({ length: 140 }, (_, i) => i)
    const all = { lengths: numbers.map(() => 10), shared: numbers.map((i) => (i === 0 ? 0 : i % 2 === 1 ? 8 : 2)) }
    const parts = divide(all, 20)
    expect(parts.length).toBe(70)
    expect(total(all, parts)).toBe(70 * 12)
  })

  test('no two parts fit together', () => {
    fc.assert(
      fc.property(paths, budget, (all, most) => {
        const parts = divide(all, most)
        for (const a of parts) {
          for (const b of parts) {
            if (a === b) continue
            const both = [...a, ...b].toSorted((x, y) => x - y)
            expect(rowsOf(all, both)).toBeGreaterThan(most)
          }
        }
      }),
    )
  })

  test('paths that stand apart are joined where they fill what neighbors leave', () => {
    // Two pairs that share 6 of 8 rows, and two short paths beside them: 10 + 2 rows twice.
    const all: TriePaths = { lengths: [8, 8, 8, 8, 2, 2], shared: [0, 6, 0, 6, 0, 0] }
    const parts = divide(all, 12)
    expect(parts.map((part) => rowsOf(all, part))).toEqual([12, 12])
    expect(new Set(parts.map((part) => part.slice(0, 2).join('+')))).toEqual(new Set(['0+1', '2+3']))
  })

  test('when more parts are wanted than the budget asks for, their largest is the smallest that cuts can give', () => {
    fc.assert(
      fc.property(paths, fc.integer({ min: 2, max: 4 }), (all, wanted) => {
        const count = Math.min(wanted, all.lengths.length)
        const parts = divide(all, 1e6, wanted)
        expect(parts.length).toBe(count)
        const best = cuts(all.lengths.length)
          .filter((cut) => cut.length === count)
          .reduce((least, cut) => Math.min(least, largest(all, cut)), Infinity)
        expect(largest(all, parts)).toBeLessThanOrEqual(count === 0 ? 0 : best)
      }),
    )
  })
})
