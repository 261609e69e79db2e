import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterEach, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const HOUR_MS = 3_600_000
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 4 }
const JUMPS = pathToFileURL(join(import.meta.dirname, '../support/clock-jumps.mjs')).href
let place: Place
afterEach(async () => place.close(), LIMIT_MS)

test('a wall clock that is set forward and back by days moves no deadline', { timeout: LIMIT_MS }, async () => {
  place = new Place()
  const file = place.runFile('jumps', { 'harness.env': { STEADY_PAUSE_MS: '200' } })
  const beganMs = Date.now()
  // The cells and the relays of the sandbox inherit it; a harness has an environment of its own.
  const gyre = place.gyreWith({ NODE_OPTIONS: `--import ${JUMPS}` }, 'train', file, '--json')
  const end = await gyre.ended
  expect(end.code, end.err).toBe(0)
  const summary = place.summary('jumps')
  expect(summary).toMatchObject({ outcome: 'done', trainingSteps: 4, harnessErrors: 0, cellRestarts: 0 })
  expect(Number(summary['minutes'])).toBeLessThan(LIMIT_MS / 60_000)
  place.ledger('jumps', (store) => {
    expectSoundLedger(store, BOOKS)
    for (const row of store.executions()) {
      expect(row).toMatchObject({ outcome: 'finished', attempt: 0 })
      expect(row.startedAtMs).toBeGreaterThan(beganMs - HOUR_MS)
      expect(row.endedAtMs).toBeLessThan(Date.now() + HOUR_MS)
      for (const call of store.calls(row.executionId)) {
        expect(call.startedAtMs).toBeGreaterThan(beganMs - HOUR_MS)
        expect(call.endedAtMs).toBeLessThan(Date.now() + HOUR_MS)
      }
    }
  })
  expect(await place.leftovers()).toEqual([])
})
