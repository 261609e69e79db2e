import fc from 'fast-check'
import { expect, test } from 'vitest'
import { derivedNumbers, dryRunReport } from './derived.ts'
import { parseConfig } from './load.ts'
import { editDistance, nearest } from './nearest.ts'
import type { RunConfig } from './resolve.ts'
import { formatSize, parseSize } from './sizes.ts'

const configOf = (...overrides: string[]): RunConfig =>
  parseConfig('tasks: { generate: {} }', { cwd: '/w', env: {}, file: '/w/q.yaml', label: 'q.yaml' }, overrides).config

test('the derived numbers follow the paper', () => {
  const paper = configOf(
    'training.groupsPerStep=32',
    'training.stepsPerBurst=4',
    'elastic.carryOver=1',
    'elastic.cells=8',
    'elastic.slotsPerCell=208',
    'training.steps=24',
  )
  expect(derivedNumbers(paper)).toMatchObject({
    dispatchDepth: 160,
    executionsOut: 1280,
    rolloutCapacity: 1664,
    firstMoveAt: 1456,
    bursts: 6,
    stalenessBound: 7,
    stalenessExpected: 2.5,
    trainingExecutions: 24 * 32 * 8,
  })
})

test('colocate has no carry-over and async fewer rollout cells', () => {
  expect(derivedNumbers(configOf('elastic.policy=colocate'))).toMatchObject({ dispatchDepth: 8, stalenessBound: 1 })
  expect(derivedNumbers(configOf('elastic.policy=async')).rolloutCapacity).toBe(40)
})

test('the dry-run report names each number with its origin', () => {
  expect(dryRunReport(configOf())).toMatch(/dispatch depth Q_b +10 groups +\(0\.5 \+ 2\) x 4\n/)
  expect(dryRunReport(configOf())).toMatch(/run folder +\/w\/runs\/q$/)
})

test('sizes parse with their units and print back', () => {
  expect(['0', '12', '1kB', '1.5GB', '2GiB', '10 MiB'].map(parseSize)).toEqual([
    0,
    12,
    1000,
    1.5e9,
    2 ** 31,
    10 * 2 ** 20,
  ])
  for (const bad of ['', 'x', '5 bananas', '-1MB', '1 2']) {
    expect(() => parseSize(bad)).toThrow(expect.objectContaining({ code: 'E_CONFIG_SIZE' }))
  }
  expect([0, 512, 1536, 2 ** 31].map(formatSize)).toEqual(['0 B', '512 B', '1.5 KiB', '2 GiB'])
})

test('the edit distance is a metric on small edits', () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 8 }), fc.string({ maxLength: 8 }), (a, b) => {
      const d = editDistance(a, b)
      expect(d).toBe(editDistance(b, a))
      expect(d === 0).toBe(a === b)
      expect(d).toBeLessThanOrEqual(Math.max(a.length, b.length))
    }),
  )
  expect(editDistance('abcd', 'abdc')).toBe(1)
  expect([nearest('group-size', ['groupSize', 'topK']), nearest('zzz', ['groupSize'])]).toEqual([
    'groupSize',
    undefined,
  ])
})
