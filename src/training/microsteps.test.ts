import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type CellId, cellId } from '../core/ids.ts'
import { type MicroStepId, MicroStepQueue } from './microsteps.ts'

const [A, B] = [cellId('a'), cellId('b')]

test('cells claim in order, and the step is finished when all are accumulated and none will come', () => {
  const queue = new MicroStepQueue()
  expect(queue.append(2)).toEqual([0, 1])
  expect([queue.claim(A, 1), queue.claim(B, 1), queue.claim(A, 1)]).toEqual([0, 1, undefined])
  expect(queue.append(1)).toEqual([2])
  expect([queue.done(0, A), queue.done(1, B), queue.claim(A, 1), queue.done(2, A)]).toEqual([true, true, 2, true])
  expect(queue.finished).toBe(false)
  queue.close()
  expect(queue.finished).toBe(true)
  expect(queue.contributors()).toEqual([A, B])
  expect(queue.accumulatedBy(A)).toEqual([0, 2])
})

test('a lost member takes its gradient along: what it claimed and accumulated runs again', () => {
  const queue = new MicroStepQueue()
  queue.append(3)
  queue.claim(A, 1)
  queue.done(0, A)
  queue.claim(A, 1)
  queue.claim(B, 1)
  expect(queue.memberLost(A)).toEqual([0, 1])
  expect(queue.counts()).toEqual({ pending: 2, claimed: 1, accumulated: 0 })
  expect(queue.done(1, A)).toBe(false)
})

test('a report from before a rejoin does not count', () => {
  const queue = new MicroStepQueue()
  queue.append(1)
  queue.claim(A, 1)
  queue.memberLost(A)
  queue.claim(A, 2)
  expect(queue.done(0, A, 1)).toBe(false)
  expect(queue.done(0, A, 2)).toBe(true)
  expect(queue.done(0, A, 2)).toBe(false)
})

test('a released claim is pending again, and keeps the gradient of others', () => {
  const queue = new MicroStepQueue()
  queue.append(1)
  queue.claim(A, 1)
  expect([queue.release(0, B), queue.release(0, A), queue.claim(B, 1)]).toEqual([false, true, 0])
})

test('whatever cells do, each micro-step ends in exactly one surviving accumulator', () => {
  const op = fc.record({ cell: fc.nat(2), kind: fc.constantFrom('claim', 'done', 'done', 'lost', 'repeat') })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 8 }), fc.array(op, { maxLength: 60 }), (count, ops) => {
      const queue = new MicroStepQueue()
      queue.append(count)
      queue.close()
      // What each cell's accumulator really holds.
      const held = new Map<CellId, MicroStepId[]>()
      const claims = new Map<CellId, MicroStepId[]>()
      const run = (cell: CellId, kind: string): void => {
        const mine = claims.get(cell) ?? []
        if (kind === 'claim') {
          const id = queue.claim(cell, 1)
          if (id !== undefined) claims.set(cell, [...mine, id])
        } else if (kind === 'lost') {
          queue.memberLost(cell)
          held.delete(cell)
          claims.delete(cell)
        } else if (kind === 'repeat') {
          for (const id of held.get(cell) ?? []) expect(queue.done(id, cell)).toBe(false)
        } else if (mine[0] !== undefined) {
          expect(queue.done(mine[0], cell)).toBe(true)
          held.set(cell, [...(held.get(cell) ?? []), mine[0]])
          claims.set(cell, mine.slice(1))
        }
      }
      for (const { cell, kind } of ops) run(cellId(`c${cell}`), kind)
      while (!queue.finished) {
        for (const cell of [0, 1, 2].map((n) => cellId(`c${n}`))) {
          run(cell, 'claim')
          run(cell, 'done')
        }
      }
      const summed = queue.contributors().flatMap((cell) => held.get(cell) ?? [])
      expect(summed.toSorted((a, b) => a - b)).toEqual([...Array(count).keys()])
    }),
  )
})
