import { afterEach, expect, test } from 'vitest'
import { cellPids, type Event, type GyreProcess, killQuietly, type Overrides, Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 4 }
let place: Place
afterEach(async () => place.close(), LIMIT_MS)

/** Micro-steps long enough to be interrupted. */
const SLOW_TRAINING: Overrides = {
  'policy.model': { hiddenSize: 96, layers: 3, heads: 4, kvHeads: 2, ffSize: 256, context: 1024 },
  'training.microStepTokens': 1024,
  'rollout.maxTokens': 48,
}

const trained =
  (cell: number) =>
  (event: Event): boolean =>
    event['kind'] === 'micro-step' && event['cell'] === cell

const stage =
  (name: string) =>
  (event: Event): boolean =>
    event['kind'] === 'stage' && String(event['stage']).startsWith(name)

test.each([
  {
    what: 'a cell in rollout, executions live',
    cell: 1,
    overrides: { 'harness.env': { STEADY_PAUSE_MS: '300' } },
    isTime: (event: Event) => event['kind'] === 'execution-finished',
  },
  { what: 'the core in the cold start', cell: 0, overrides: SLOW_TRAINING, isTime: stage('cold start') },
  { what: 'a satellite in the cold start', cell: 1, overrides: SLOW_TRAINING, isTime: stage('cold start') },
  {
    what: 'a cell while the held-out tasks run',
    cell: 1,
    overrides: { 'harness.env': { STEADY_PAUSE_MS: '1000' } },
    isTime: stage('evaluation before'),
  },
  { what: 'a satellite in training', cell: 1, overrides: SLOW_TRAINING, isTime: trained(1) },
  { what: 'the core in training', cell: 0, overrides: SLOW_TRAINING, isTime: trained(0) },
])('a run survives kill -9 of $what', { timeout: LIMIT_MS }, async ({ cell, overrides, isTime }) => {
  place = new Place()
  const gyre = place.gyre('train', place.runFile('death', overrides), '--json')
  const pid = await gyre.until('its time comes', () =>
    place.events('death').some(isTime) ? pidOf(gyre, cell) : undefined,
  )
  killQuietly(pid)
  const end = await gyre.ended
  expect(end.code, end.err).toBe(0)
  const summary = place.summary('death')
  expect(summary).toMatchObject({ outcome: 'done', trainingSteps: 4, harnessErrors: 0, tokensMismatched: 0 })
  expect(summary['cellRestarts']).toBeGreaterThanOrEqual(1)
  place.ledger('death', (store) => {
    expectSoundLedger(store, BOOKS)
    // No harness noticed: every execution went to its end at the first attempt.
    expect(store.executions().filter((row) => row.outcome !== 'finished' || row.attempt > 0)).toEqual([])
  })
  expect(await place.leftovers()).toEqual([])
})

function pidOf(gyre: GyreProcess, cell: number): number | undefined {
  return cellPids(gyre.pid)[cell]
}
