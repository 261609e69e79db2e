import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { readReward } from './read-reward.ts'

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'gyre-reward-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

test.each([
  ['reward.txt', '1', 1, {}],
  ['reward.txt', ' 0.25\n', 0.25, {}],
  ['reward.txt', '-1e-1', -0.1, {}],
  ['reward.txt', '0', 0, {}],
  ['reward.json', '0.5', 0.5, {}],
  ['reward.json', '{"reward": 0.5, "style": 1}', 0.5, { style: 1 }],
  ['reward.json', '{"a": 1, "b": 0}', 0.5, { a: 1, b: 0 }],
  [
    'ctrf.json',
    '{"results":{"tests":[{"status":"passed"},{"status":"failed"},{"status":"skipped"},{"status":"passed"}]}}',
    2 / 3,
    { passed: 2, tests: 3 },
  ],
  ['ctrf.json', '{"results":{"summary":{"tests":5,"passed":2,"failed":2,"skipped":1}}}', 0.5, { passed: 2, tests: 4 }],
])('reads %s that holds %j', (file, text, reward, parts) => {
  writeFileSync(join(folder, file), text)
  expect(readReward(folder)).toEqual({ reward, parts })
})

test.each([
  ['reward.txt', ''],
  ['reward.txt', 'NaN'],
  ['reward.txt', 'Infinity'],
  ['reward.txt', '1 2'],
  ['reward.txt', '0x10'],
  ['reward.json', '{"reward": "1"}'],
  ['reward.json', '{}'],
  ['reward.json', '{"reward":'],
  ['reward.json', 'true'],
  ['reward.json', '1e999'],
  ['ctrf.json', '{"results":{"tests":[{"status":"skipped"}]}}'],
  ['ctrf.json', '{"something":"else"}'],
])('finds no number in %s that holds %j', (file, text) => {
  writeFileSync(join(folder, file), text)
  expect(() => readReward(folder)).toThrow(expect.objectContaining({ code: 'E_SCORER_NO_REWARD', retryable: true }))
})

test('prefers reward.json to reward.txt, and both to a test report', () => {
  writeFileSync(join(folder, 'ctrf.json'), '{"results":{"summary":{"tests":2,"passed":0}}}')
  writeFileSync(join(folder, 'reward.txt'), '0.1')
  expect(readReward(folder)?.reward).toBe(0.1)
  writeFileSync(join(folder, 'reward.json'), '0.2')
  expect(readReward(folder)?.reward).toBe(0.2)
})

test('does not follow a link', () => {
  writeFileSync(join(folder, 'elsewhere'), '1')
  symlinkSync('elsewhere', join(folder, 'reward.txt'))
  expect(() => readReward(folder)).toThrow(/not a plain file/)
})

test('reports nothing for an empty folder', () => {
  expect(readReward(folder)).toBeUndefined()
})
