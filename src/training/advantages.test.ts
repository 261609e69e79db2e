import fc from 'fast-check'
import { expect, test } from 'vitest'
import { executionId, groupId } from '../core/ids.ts'
import { type AdvantageEstimator, groupAdvantages } from './advantages.ts'

const G = groupId('g')
const members = (rewards: readonly (number | undefined)[]) =>
  rewards.map((reward, i) => ({ executionId: executionId(`x${i}`), reward }))
const values = (rewards: readonly (number | undefined)[], estimator: AdvantageEstimator): number[] => [
  ...groupAdvantages(G, members(rewards), estimator).advantages.values(),
]

test.each([
  ['grpo', [1, 0, 0, 0], [Math.sqrt(3), -1 / Math.sqrt(3), -1 / Math.sqrt(3), -1 / Math.sqrt(3)]],
  ['dr-grpo', [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]],
  ['rloo', [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]],
  ['dr-grpo', [0.5, undefined, 1], [-0.25, 0.25]],
] as const)('%s of %j', (estimator, rewards, expected) => {
  values(rewards, estimator).forEach((value, i) => expect(value).toBeCloseTo(expected[i] ?? NaN, 12))
  expect(values(rewards, estimator).length).toBe(expected.length)
})

test.each([
  [[], 'too-few-scored'],
  [[1], 'too-few-scored'],
  [[1, undefined, undefined], 'too-few-scored'],
  [[0.1 + 0.2, 0.3], 'zero-variance'],
  [[0, 0, 0], 'zero-variance'],
] as const)('rewards %j give no gradient: %s', (rewards, reason) => {
  const group = groupAdvantages(G, members(rewards), 'grpo')
  expect([group.skipped, group.advantages.size]).toEqual([reason, 0])
})

test('advantages sum to zero and keep the order of rewards', () => {
  const rewards = fc.array(fc.integer({ min: 0, max: 100 }), { minLength: 2, maxLength: 16 })
  fc.assert(
    fc.property(rewards, fc.constantFrom('grpo', 'dr-grpo', 'rloo'), (list, estimator) => {
      const advantages = values(list, estimator)
      expect(advantages.reduce((a, b) => a + b, 0)).toBeCloseTo(0, 6)
      for (const [i, a] of advantages.entries()) {
        for (const [j, b] of advantages.entries()) {
          expect(Math.sign(a - b)).toBe(Math.sign((list[i] ?? 0) - (list[j] ?? 0)))
        }
      }
    }),
  )
})

test('a reward that is no number is a bug, not a zero', () => {
  expect(() => values([NaN, 1], 'grpo')).toThrow(/finite/)
})
