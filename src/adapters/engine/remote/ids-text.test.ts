import fc from 'fast-check'
import { expect, test } from 'vitest'
import { idsText } from './ids-text.ts'

test('ids are written as JSON writes them', () => {
  fc.assert(
    fc.property(fc.array(fc.oneof(fc.nat(200), fc.nat(200_000), fc.nat(2 ** 31 - 1))), (ids) => {
      expect(`[${idsText(Int32Array.from(ids))}]`).toBe(JSON.stringify(ids))
    }),
  )
})
