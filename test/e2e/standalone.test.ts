import { afterEach, expect, test } from 'vitest'
import { type GyreProcess, killQuietly, Place, processes } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 4 }
let place: Place
afterEach(async () => place.close(), LIMIT_MS)

test(
  'a process that only rolls out serves every version, is killed, comes back and serves the present one',
  { timeout: LIMIT_MS },
  async () => {
    place = new Place()
    const file = place.runFile('beside', {
      'elastic.standalone': [{ kind: 'embedded', slots: 4 }],
      'elastic.heartbeat': '200ms',
      'elastic.healthTimeout': '2s',
      'training.steps': BOOKS.steps,
      'harness.env': { STEADY_PAUSE_MS: '300' },
    })
    const gyre = place.gyre('train', file, '--json')
    const pid = await gyre.until('executions ended beside the cells', () =>
      place.events('beside').some((event) => event['kind'] === 'execution-finished') ? rolloutPid(gyre) : undefined,
    )
    killQuietly(pid)
    const next = await gyre.until('it comes back', () => {
      const found = rolloutPid(gyre)
      return found === pid ? undefined : found
    })
    expect(next).not.toBe(pid)
    const end = await gyre.ended
    expect(end.code, end.err).toBe(0)
    const events = place.events('beside')
    expect(events.filter((event) => event['kind'] === 'standalone-failed')).toHaveLength(1)
    expect(events.filter((event) => event['kind'] === 'standalone-recovered')).toHaveLength(1)
    expect(place.summary('beside')).toMatchObject({
      outcome: 'done',
      trainingSteps: BOOKS.steps,
      harnessErrors: 0,
      tokensMismatched: 0,
      cellRestarts: 0,
      standaloneFailures: 1,
    })
    const status = await place.gyre('status', 'beside', '--json').ended
    expect(JSON.parse(status.out)).toMatchObject({
      isRunning: false,
      live: { carryOver: 0.5, standalone: [{ name: 'rollout-0', phase: 'serving', slots: 4 }] },
    })
    place.ledger('beside', (store) => {
      expectSoundLedger(store, BOOKS)
      expect(store.executions().filter((row) => row.outcome !== 'finished' || row.attempt > 0)).toEqual([])
    })
    expect(await place.leftovers()).toEqual([])
  },
)

function rolloutPid(gyre: GyreProcess): number | undefined {
  return processes().find((p) => p.parent === gyre.pid && p.command.startsWith('gyre rollout-0'))?.pid
}
