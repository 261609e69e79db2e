import { afterAll, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 300_000
const place = new Place()
afterAll(async () => place.close(), LIMIT_MS)

test('the unmodified pi trains a policy, and every call of it is accounted for', { timeout: LIMIT_MS }, async () => {
  const quiet = ['--no-skills', '--no-extensions', '--no-prompt-templates', '--no-themes', '--no-context-files']
  const cache = process.env['GYRE_CACHE']
  const file = place.runFile('pi', {
    ...(cache === undefined ? {} : { 'paths.cache': cache }),
    'harness.name': 'pi',
    'harness.argv': undefined,
    'harness.args': ['--tools', 'bash', '--system-prompt', 'You work in a terminal.', ...quiet],
    'tasks.generate': { train: 4, heldOut: 1, minStops: 2, maxStops: 2 },
    // Enough to call the tool now and then.
    'warmstart.demonstrations': 200,
    'warmstart.excerptSteps': 60,
    'warmstart.learningRate': 5e-3,
    'rollout.groupSize': 2,
    'rollout.maxCalls': 3,
    'rollout.maxTokens': 48,
    'training.steps': 1,
    'training.stepsPerBurst': 1,
  })
  const end = await place.gyre('train', file, '--json').ended
  expect(end.code, end.err).toBe(0)
  expect(place.summary('pi')).toMatchObject({
    outcome: 'done',
    trainingSteps: 1,
    executions: 6,
    harnessErrors: 0,
    tokensMismatched: 0,
  })
  place.ledger('pi', (store) => {
    expectSoundLedger(store, { groupSize: 2, groupsPerStep: 2, steps: 1 })
    for (const row of store.executions())
      expect(store.calls(row.executionId).length, row.executionId).toBeGreaterThan(0)
  })
  expect(await place.leftovers()).toEqual([])
})
