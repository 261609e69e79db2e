import fc from 'fast-check'
import { expect, test } from 'vitest'
import { listVisibleTiles } from './visibility.ts'

/** Ends of a random forest in depth-first order: each row's parent is some row of the path that is still open. */
const forests = fc.array(fc.nat({ max: 1000 }), { minLength: 1, maxLength: 120 }).map((picks) => {
  const ends = new Int32Array(Math.ceil(picks.length / 8) * 8)
  let path: number[] = []
  picks.forEach((pick, i) => {
    path = path.slice(0, pick % 4 === 0 ? pick % (path.length + 1) : path.length)
    path.push(i)
    for (const row of path) ends[row] = i + 1
  })
  return { rows: picks.length, ends }
})

test('a tile is listed exactly when some row of the block sees a key of it, and is full when all see all', () => {
  fc.assert(
    fc.property(forests, fc.constantFrom(8, 16, 32), ({ rows, ends }, block) => {
      const blocks = Math.ceil(rows / block)
      const out = { starts: new Int32Array(blocks), lengths: new Int32Array(blocks), lists: new Int32Array(10_000) }
      listVisibleTiles(ends, rows, block, 8, out)
      for (let b = 0; b < blocks; b++) {
        const start = out.starts[b] ?? 0
        const listed = new Map(
          [...out.lists.subarray(start, start + (out.lengths[b] ?? 0))].map((e) => [e >> 1, e & 1]),
        )
        for (let tile = 0; tile * 8 < rows; tile++) {
          const seen: boolean[] = []
          for (let i = b * block; i < Math.min(rows, b * block + block); i++) {
            for (let j = tile * 8; j < tile * 8 + 8; j++) seen.push(j <= i && i < (ends[j] ?? 0))
          }
          expect(listed.has(tile)).toBe(seen.includes(true))
          if (listed.get(tile) === 0) expect(seen).not.toContain(false)
        }
      }
    }),
  )
})
