import { afterEach, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const places: Place[] = []
afterEach(async () => {
  for (const place of places.splice(0)) await place.close()
}, LIMIT_MS)

test('a run whose cells keep gradients until groups are complete ends well', { timeout: LIMIT_MS }, async () => {
  const place = new Place()
  places.push(place)
  const file = place.runFile('early', {
    'elastic.earlyForward': true,
    'training.entropyWeight': 0,
    'harness.env': { STEADY_PAUSE_MS: '300' },
  })
  const end = await place.gyre('train', file, '--json').ended
  expect(end.code, end.err).toBe(0)
  const expected = { outcome: 'done', trainingSteps: 4, harnessErrors: 0, tokensMismatched: 0, cellRestarts: 0 }
  expect(place.summary('early')).toMatchObject(expected)
  place.ledger('early', (store) => {
    expectSoundLedger(store, { groupSize: 4, groupsPerStep: 2, steps: 4 })
    const served = store.steps().map(({ metrics }) => metrics['early_micro_steps'] ?? 0)
    expect(Math.max(...served)).toBeGreaterThan(0)
  })
  expect(await place.leftovers()).toEqual([])
})
