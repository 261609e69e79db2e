import fc from 'fast-check'
import { expect, test } from 'vitest'
import { bodyWithIds } from './ids-text.ts'

test('ids are written as JSON writes them', () => {
  const id = fc.oneof(fc.nat(10), fc.nat(200), fc.nat(2000), fc.nat(200_000), fc.nat(2_000_000), fc.nat(2 ** 31 - 1))
  fc.assert(
    fc.property(fc.array(id), fc.string(), (ids, text) => {
      const body = bodyWithIds('é', Int32Array.from(ids), { text })
      expect(body.toString('utf8')).toBe(JSON.stringify({ é: ids, text }))
    }),
  )
})

test('every id of six digits and those around', () => {
  const ids = Int32Array.from({ length: 1_000_100 }, (_, i) => i)
  expect(bodyWithIds('ids', ids, { n: 1 }).equals(Buffer.from(JSON.stringify({ ids: [...ids], n: 1 })))).toBe(true)
})
