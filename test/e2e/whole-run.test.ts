import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Ended, Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 4 }

describe('a whole run with the elastic policy', () => {
  const place = new Place()
  let end: Ended
  beforeAll(async () => {
    const file = place.runFile('whole', { 'harness.env': { STEADY_PAUSE_MS: '150' } })
    end = await place.gyre('train', file, '--json').ended
  }, LIMIT_MS)
  afterAll(async () => place.close(), LIMIT_MS)

  test('ends with its summary, in a file and on standard output', () => {
    expect(end.code, end.err).toBe(0)
    const summary = place.summary('whole')
    expect(summary).toMatchObject({
      outcome: 'done',
      heldOutRewardBefore: expect.any(Number) as number,
      heldOutRewardAfter: expect.any(Number) as number,
      trainingSteps: BOOKS.steps,
      harnessErrors: 0,
      tokensMismatched: 0,
      cellRestarts: 0,
      seed: 1,
      policy: 'elastic',
    })
    for (const field of ['minutes', 'executions', 'modelCalls', 'roleTransfers']) {
      expect(summary[field], field).toBeGreaterThan(0)
    }
    expect(summary['requestsMoved']).toBeGreaterThanOrEqual(0)
    const lines = end.out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>)
    expect(lines.at(-1)).toEqual({ kind: 'summary', ...summary })
    expect(lines.filter((line) => line['kind'] === 'step')).toHaveLength(BOOKS.steps)
  })

  test('counts what the ledger holds', () => {
    place.ledger('whole', (store) => {
      const calls = store.executions().reduce((sum, row) => sum + store.calls(row.executionId).length, 0)
      expect(place.summary('whole')).toMatchObject({ executions: store.executions().length, modelCalls: calls })
      expect(store.executions().map((row) => [row.state, row.outcome])).toEqual(
        store.executions().map(() => ['scored', 'finished']),
      )
      expect(new Set(store.executions().map((row) => row.reward)).size, 'different rewards').toBeGreaterThan(1)
    })
  })

  test('leaves books in which every path, version, group and leaf is accounted for', () => {
    place.ledger('whole', (store) => expectSoundLedger(store, BOOKS))
  })

  test('trained on exactly what was sampled: the trainer finds the same log-probs for the same tokens', () => {
    place.ledger('whole', (store) => {
      const [first] = store.steps()
      expect(first?.metrics).toMatchObject({ 'off_policy/max_staleness': 0, 'off_policy/max_ratio': 1 })
      expect(first?.metrics['trained_tokens']).toBeGreaterThan(0)
    })
  })

  test('moved a cell to training with live executions in every burst', () => {
    const events = place.events('whole')
    const bursts = place.ledger('whole', (store) => new Set(store.steps().map((row) => row.burst)))
    const live = events.filter(
      (e) => e['kind'] === 'role-transfer' && e['to'] === 'training' && Number(e['liveExecutions']) > 0,
    )
    expect(place.summary('whole')['liveRoleTransfers']).toBe(live.length)
    const checkpoints = events.filter((e) => e['kind'] === 'checkpoint').map((e) => Number(e['atMs']))
    expect(checkpoints).toHaveLength(bursts.size)
    checkpoints.forEach((atMs, burst) => {
      const since = checkpoints[burst - 1] ?? 0
      const inBurst = live.filter((e) => Number(e['atMs']) > since && Number(e['atMs']) <= atMs)
      expect(inBurst.length, `live transfers in burst ${burst}`).toBeGreaterThan(0)
    })
  })

  test('leaves no process, no temp folder and no socket behind', async () => {
    expect(await place.leftovers()).toEqual([])
  })
})
