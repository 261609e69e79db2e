import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type PackExecution, type PackSequence, type PackedMicroStep, countTargets } from './forest.ts'
import { demonstration, packFlat, packMicroSteps } from './pack.ts'

/** Few ids, so that random paths share prefixes, also between executions. */
const path = fc
  .array(fc.tuple(fc.integer({ min: 3, max: 4 }), fc.boolean()), { minLength: 1, maxLength: 12 })
  .map((tokens) => ({
    tokenIds: Int32Array.from([1, ...tokens.map(([id]) => id)]),
    targetMask: Uint8Array.from([0, ...tokens.map(([, bit]) => Number(bit))]),
    behaviorLogprobs: Float32Array.from([NaN, ...tokens.map((_, i) => -i / 8)]),
    policyVersions: Int32Array.from([-1, ...tokens.map((_, i) => i % 3)]),
  }))
const executions: fc.Arbitrary<readonly PackExecution[]> = fc
  .array(fc.array(path, { maxLength: 4 }), { maxLength: 6 })
  .map((all) => all.map((sequences, i) => ({ key: `x${i}`, advantage: i - 2, tokenWeight: 1 / 2 ** i, sequences })))
const limits = fc.record({ maxTokens: fc.integer({ min: 1, max: 60 }), minMicroSteps: fc.integer({ min: 1, max: 4 }) })

function visible({ tokenIds, subtreeEnd, positions }: PackedMicroStep['batch'], row: number): number[] {
  const rows = [...tokenIds.keys()].filter((j) => j <= row && row < (subtreeEnd[j] ?? 0))
  expect(rows.map((j) => positions[j])).toEqual([...rows.keys()])
  return rows.map((j) => tokenIds[j] ?? -1)
}

const sorted = (lines: readonly string[]): string[] => lines.toSorted((a, b) => a.localeCompare(b))

/** Every target with the whole context it is predicted from. */
function packedTargets(steps: readonly PackedMicroStep[]): string[] {
  const lines = steps.flatMap(({ batch, executions: keys, targetExecutions, targetPolicyVersions }) =>
    Array.from(batch.targetRows, (row, r) =>
      [
        keys[targetExecutions[r] ?? -1],
        visible(batch, row).join('.'),
        batch.targetIds[r],
        batch.targetWeights[r],
        batch.targetAdvantages[r],
        batch.targetBehaviorLogprobs[r],
        targetPolicyVersions[r],
      ].join(' '),
    ),
  )
  return sorted(lines)
}

function expectedTargets(all: readonly PackExecution[]): string[] {
  const lines = all.flatMap(({ key, advantage, tokenWeight, sequences }) =>
    sequences.flatMap(({ tokenIds, targetMask, behaviorLogprobs, policyVersions }) =>
      [...tokenIds.keys()]
        .filter((at) => targetMask[at] === 1)
        .map((at) =>
          [
            key,
            tokenIds.subarray(0, at).join('.'),
            tokenIds[at],
            tokenWeight,
            advantage,
            behaviorLogprobs?.[at],
            policyVersions?.[at],
          ].join(' '),
        ),
    ),
  )
  return sorted(lines)
}

const paths = (all: readonly PackExecution[]): Int32Array[] =>
  all.flatMap(({ sequences }) => sequences.filter((s) => countTargets(s) > 0).map((s) => s.tokenIds))
const prefixes = (all: readonly PackExecution[]): ReadonlySet<string> =>
  new Set(paths(all).flatMap((ids) => Array.from(ids, (_, i) => ids.subarray(0, i + 1).join('.'))))
const rowsOf = (steps: readonly PackedMicroStep[]): number =>
  steps.reduce((sum, step) => sum + step.batch.tokenIds.length, 0)

const sequence = (ids: number[], mask: number[]): PackSequence => ({
  tokenIds: Int32Array.from(ids),
  targetMask: Uint8Array.from(mask),
  behaviorLogprobs: Float32Array.from(ids, () => -0.5),
})

describe('packMicroSteps', () => {
  test('every target comes out once, with exactly its own context, in merged and in flat form', () => {
    fc.assert(
      fc.property(executions, limits, (all, options) => {
        const expected = expectedTargets(all)
        expect(packedTargets(packMicroSteps(all, { ...options, mergePrefix: true }))).toEqual(expected)
        expect(packedTargets(packFlat(all, options))).toEqual(expected)
      }),
    )
  })

  test('one merged micro-step has one row per distinct prefix, and holds every path whole', () => {
    fc.assert(
      fc.property(executions, (all) => {
        const steps = packMicroSteps(all, { maxTokens: 1e6, mergePrefix: true })
        expect(rowsOf(steps)).toBe(prefixes(all).size)
        expect(steps.length).toBeLessThanOrEqual(1)
        for (const { batch, flatTokens } of steps) {
          const held = new Set(Array.from(batch.tokenIds, (_, row) => visible(batch, row).join('.')))
          expect(held).toEqual(prefixes(all))
          expect(flatTokens).toBe(paths(all).reduce((sum, ids) => sum + ids.length, 0))
        }
      }),
    )
  })

  test('the budget holds but for a path that is longer than it', () => {
    fc.assert(
      fc.property(executions, limits, fc.boolean(), (all, options, mergePrefix) => {
        const lengths = new Set(paths(all).map((ids) => ids.length))
        for (const { batch } of packMicroSteps(all, { ...options, mergePrefix })) {
          const rows = batch.tokenIds.length
          expect(rows <= options.maxTokens || lengths.has(rows)).toBe(true)
        }
      }),
    )
  })

  test('there are as many micro-steps as asked for, while there are paths to part', () => {
    fc.assert(
      fc.property(executions, fc.integer({ min: 1, max: 6 }), (all, minMicroSteps) => {
        const steps = packMicroSteps(all, { maxTokens: 1e6, mergePrefix: true, minMicroSteps })
        expect(steps.length).toBe(Math.min(minMicroSteps, paths(all).length) || steps.length)
        expect(steps.map((s) => s.cost)).toEqual(steps.map((s) => s.cost).toSorted((a, b) => b - a))
      }),
    )
  })

  test('a prefix that two executions share is one trunk, with a target of each on the same row', () => {
    const all: PackExecution[] = [
      { key: 'a', advantage: 1, tokenWeight: 0.25, sequences: [sequence([1, 2, 3, 4], [0, 0, 1, 1])] },
      { key: 'b', advantage: -1, tokenWeight: 0.25, sequences: [sequence([1, 2, 3, 5], [0, 0, 1, 1])] },
    ]
    const [step, ...rest] = packMicroSteps(all, { maxTokens: 100, mergePrefix: true })
    expect(rest).toEqual([])
    expect(step?.batch).toEqual({
      tokenIds: Int32Array.from([1, 2, 3, 4, 5]),
      positions: Int32Array.from([0, 1, 2, 3, 3]),
      subtreeEnd: Int32Array.from([5, 5, 5, 4, 5]),
      targetRows: Int32Array.from([1, 2, 1, 2]),
      targetIds: Int32Array.from([3, 4, 3, 5]),
      targetWeights: Float32Array.from([0.25, 0.25, 0.25, 0.25]),
      targetAdvantages: Float32Array.from([1, 1, -1, -1]),
      targetBehaviorLogprobs: Float32Array.from([-0.5, -0.5, -0.5, -0.5]),
    })
  })

  test('demonstrations take the same way', () => {
    const example = { tokenIds: Int32Array.from([1, 7, 8]), targetMask: Uint8Array.from([0, 1, 1]), weight: 0.5 }
    const [step] = packMicroSteps([demonstration('d0', example)], { maxTokens: 8, mergePrefix: true })
    expect([...(step?.batch.targetRows ?? [])]).toEqual([0, 1])
    expect([...(step?.batch.targetAdvantages ?? [])]).toEqual([1, 1])
    expect([...(step?.targetPolicyVersions ?? [])]).toEqual([-1, -1])
  })

  test('a first token cannot be a target', () => {
    const example = { tokenIds: Int32Array.from([1, 7]), targetMask: Uint8Array.from([1, 1]), weight: 1 }
    expect(() => packMicroSteps([demonstration('d0', example)], { maxTokens: 8, mergePrefix: true })).toThrow(/d0/)
  })
})
