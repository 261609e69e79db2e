/** @file The gradient of recorded sessions trained as trees: what the same turns give as rows. */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { compare } from '../bench/tree/measure.ts'
import { group, readSession } from '../bench/tree/sessions.ts'
import type { ModelShape } from '../src/kernels/shape.ts'
import { packFlat, packMicroSteps } from '../src/training/pack.ts'

const GOLDEN = join(import.meta.dirname, 'golden')
const recordings = readdirSync(GOLDEN)
  .filter((name) => /-(compaction|sub-agent-compaction|sub-agents|background)$/.test(name))
  .toSorted()
const MODEL: ModelShape = {
  vocabSize: 512,
  hiddenSize: 32,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 64,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
const SCALE = { chunk: 256, vocabSize: MODEL.vocabSize }

test('there are recordings', () => {
  expect(recordings.length).toBeGreaterThan(10)
})

test.each(recordings)('%s: tree, tree in pieces, rows of leaves and rows of calls agree to 1e-5', async (name) => {
  const session = await readSession(join(GOLDEN, name))
  const leaves = group(session, 'leaves', 3, SCALE)
  const calls = group(session, 'calls', 3, SCALE)
  const { forms, gradientError } = await compare(
    MODEL,
    {
      tree: packMicroSteps(leaves, { maxTokens: 16_384, mergePrefix: true }),
      pieces: packMicroSteps(leaves, { maxTokens: 700, mergePrefix: true, minMicroSteps: 3 }),
      leaves: packFlat(leaves, { maxTokens: 4096 }),
      calls: packFlat(calls, { maxTokens: 4096 }),
    },
    0,
  )
  const { tree, pieces, leaves: ofLeaves, calls: ofCalls } = forms
  expect(tree?.microSteps).toBe(1)
  expect(pieces?.microSteps).toBeGreaterThanOrEqual(3)
  for (const form of [pieces, ofLeaves, ofCalls]) {
    expect(form?.targets).toBe(tree?.targets)
    expect(form?.rows).toBeGreaterThan(tree?.rows ?? Infinity)
  }
  expect(Object.keys(gradientError)).toEqual(['pieces', 'leaves', 'calls'])
  for (const error of Object.values(gradientError)) expect(error).toBeLessThan(1e-5)
})
