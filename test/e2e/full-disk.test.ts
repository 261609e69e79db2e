import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, expect, test } from 'vitest'
import { Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 240_000
const PRLIMIT = '/usr/bin/prlimit'
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 5 }
/** Beyond which the control process cannot write: below what its files hold already. [bytes] */
const FULL = 4096
let place: Place
afterEach(async () => place.close(), LIMIT_MS)

// A limit on file size stands in for the full disk: the kernel refuses the write in both cases.
test.skipIf(!existsSync(PRLIMIT))(
  'a disk that is full for a while delays a run: no harness notices, nothing is lost',
  { timeout: LIMIT_MS },
  async () => {
    place = new Place()
    const file = place.runFile('full', {
      'harness.env': { STEADY_PAUSE_MS: '200' },
      'training.steps': BOOKS.steps,
      'training.stepsPerBurst': 1,
    })
    const gyre = place.gyre('train', file, '--json')
    const steps = (): number => place.ledger('full', (store) => store.latestCheckpoint()?.step ?? 0)
    await gyre.until('the second step', () => {
      const isTrained = place.events('full').some((e) => e['kind'] === 'checkpoint')
      return (isTrained && running() >= 2) || undefined
    })
    // The children that run already keep their own limit.
    execFileSync(PRLIMIT, ['--pid', String(gyre.pid), `--fsize=${FULL}:unlimited`])
    await sleep(5000)
    const [before, callsBefore] = [steps(), calls()]
    await sleep(3000)
    expect([steps(), calls(), gyre.hasEnded], gyre.said()).toEqual([before, callsBefore, false])
    execFileSync(PRLIMIT, ['--pid', String(gyre.pid), '--fsize=unlimited:unlimited'])
    const end = await gyre.ended
    expect(end.code, end.err).toBe(0)
    expect(`${end.out}${end.err}`).toMatch(/cannot be written: free disk space/)
    expect(place.summary('full')).toMatchObject({ outcome: 'done', trainingSteps: BOOKS.steps, harnessErrors: 0 })
    place.ledger('full', (store) => {
      expectSoundLedger(store, BOOKS)
      expect(store.executions().filter((row) => row.outcome !== 'finished' || row.attempt > 0)).toEqual([])
    })
    expect(await place.leftovers()).toEqual([])
  },
)

/** Executions in the middle of their life. */
function running(): number {
  return place.ledger('full', (store) => store.executions().filter((row) => row.state === 'running').length)
}

function calls(): number {
  return place.ledger('full', (store) =>
    store.executions().reduce((sum, row) => sum + store.calls(row.executionId).length, 0),
  )
}
