/** @file `gyre record` with the unmodified pi, and `gyre replay` of what it wrote and of what was forged. */
import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'

const GOLDEN = resolve(import.meta.dirname, '../golden')
const LIMIT_MS = 240_000
const KEYS = [
  'calls',
  'sampledTokens',
  'trainableTokens',
  'wrongContexts',
  'emittedTokens',
  'flatTokens',
  'distinctTokens',
  'orphans',
  'leaves',
]
const place = new Place()
afterAll(async () => place.close(), LIMIT_MS)

test('a session of pi is recorded, and replays to the same figures', { timeout: LIMIT_MS }, async () => {
  const cache = process.env['GYRE_CACHE']
  const where = cache === undefined ? [] : ['--cache', cache]
  const scenario = join(GOLDEN, 'scenarios/pi-retry.yaml')
  const recorded = await place.gyre('record', 'pi', scenario, '--out', 'mine', '--json', ...where).ended
  expect(recorded.code, recorded.err).toBe(0)
  const { recording, ...figures } = JSON.parse(recorded.out) as Record<string, unknown>
  expect(recording).toBe(place.file('mine'))
  expect(readdirSync(place.file('mine')).toSorted()).toEqual([
    'calls.jsonl',
    'exchanges.jsonl',
    'parts.jsonl',
    'recording.json',
  ])
  const replayed = await place.gyre('replay', 'mine', '--json', '--assert').ended
  expect(replayed.code, replayed.err).toBe(0)
  const again = JSON.parse(replayed.out) as Record<string, unknown>
  expect(Object.keys(again)).toEqual(KEYS)
  expect(again).toEqual(figures)
  expect(again).toMatchObject({ calls: 4, wrongContexts: 0, orphans: 0, leaves: { main: { picked: 1 } } })
  expect(again['trainableTokens']).toBe(again['sampledTokens'])
  expect(await place.gyre('record', 'pi', scenario, '--out', 'mine').ended).toMatchObject({ code: 2 })
  expect(await place.leftovers()).toEqual([])
})

test('several recordings are one line each, and one that no longer holds fails the assertion', async () => {
  const name = readdirSync(GOLDEN).find((entry) => entry.startsWith('pi-')) ?? ''
  for (const copy of ['set/good', 'set/forged']) cpSync(join(GOLDEN, name), place.file(copy), { recursive: true })
  const calls = place.file('set/forged/calls.jsonl')
  writeFileSync(calls, readFileSync(calls, 'utf8').replace('"role":"main"', '"role":"sub-agent"'))
  const { code, out, err } = await place.gyre('replay', 'set', '--json', '--assert').ended
  expect(code).toBe(1)
  expect(
    out
      .trim()
      .split('\n')
      .map((line) => (JSON.parse(line) as { recording: string }).recording),
  ).toEqual(['forged', 'good'])
  expect(err).toContain('forged: call 0 was sub-agent committed, now it is main committed')
  expect(err).not.toContain('good:')
  const table = await place.gyre('replay', 'set/good').ended
  expect(table).toMatchObject({ code: 0 })
  expect(table.out).toMatch(/good +\d+ +\d+ +\d+ \(100 %\) +0 /)
})

test('what is asked wrongly is said, with exit code 2', async () => {
  const scenario = place.write('bad.yaml', 'name: bad\ninstruction: go\nrules:\n  - turns: [{ txt: hi }]\n')
  const runs = [
    [['record', 'nobody', scenario, '--out', 'x'], 'E_CONFIG_HARNESS'],
    [['record', 'pi', scenario, '--out', 'x'], 'bad.yaml:4'],
    [['record', 'pi', 'missing.yaml', '--out', 'x'], 'E_CONFIG_SCENARIO'],
    [['replay', 'nothing'], 'E_CONFIG_RECORDING'],
    [
      ['gateway', '--engine', 'oracle', '--url', 'http://127.0.0.1:1', '--out', 'x', '--tokenizer', 'nothing'],
      'E_CONFIG_TOKENIZER',
    ],
    [['gateway', '--engine', `scripted:${scenario}`, '--out', 'y'], 'bad.yaml:4'],
  ] as const
  const ends = await Promise.all(runs.map(async ([args]) => place.gyre(...args).ended))
  for (const [i, { code, err }] of ends.entries()) {
    expect(code, err).toBe(2)
    expect(err).toContain(runs[i]?.[1])
  }
})
