import { afterEach, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const places: Place[] = []
afterEach(async () => {
  for (const place of places.splice(0)) await place.close()
}, LIMIT_MS)

test.each(['colocate', 'async'])('the same workload ends well under %s', { timeout: LIMIT_MS }, async (policy) => {
  const place = new Place()
  places.push(place)
  const file = place.runFile(policy, {
    'elastic.policy': policy,
    'elastic.carryOver': policy === 'colocate' ? 0 : 0.5,
    'harness.env': { STEADY_PAUSE_MS: '100' },
  })
  const end = await place.gyre('train', file, '--json').ended
  expect(end.code, end.err).toBe(0)
  const expected = { outcome: 'done', policy, trainingSteps: 4, harnessErrors: 0, tokensMismatched: 0, cellRestarts: 0 }
  expect(place.summary(policy)).toMatchObject(expected)
  place.ledger(policy, (store) => expectSoundLedger(store, { groupSize: 4, groupsPerStep: 2, steps: 4 }))
  // Colocated cells leave when nothing runs; under async only the cell that always trains leaves, once.
  expect(place.summary(policy)['liveRoleTransfers']).toBeLessThanOrEqual(policy === 'colocate' ? 0 : 1)
  expect(await place.leftovers()).toEqual([])
})
