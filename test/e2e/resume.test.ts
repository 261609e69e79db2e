import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import type { ExecutionRow, Store } from '../../src/ports/store.ts'
import {
  familyOf,
  type GyreProcess,
  isRunning,
  killQuietly,
  type Overrides,
  Place,
  processes,
} from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const BOOKS = { groupSize: 4, groupsPerStep: 2, steps: 4 }
let place: Place
afterEach(async () => place.close(), LIMIT_MS)

function slowRun(overrides: Overrides = {}): string {
  place = new Place()
  return place.runFile('resumed', {
    'harness.env': { STEADY_PAUSE_MS: '200', STEADY_TELL: place.file('started.jsonl') },
    ...overrides,
  })
}

const stage = (name: string) => (): boolean =>
  place.events('resumed').some((e) => e['kind'] === 'stage' && String(e['stage']).startsWith(name))
const count = (kind: string): number => place.events('resumed').filter((e) => e['kind'] === kind).length

const MOMENTS = [
  { when: 'in the cold start', isTime: stage('cold start'), guards: true },
  {
    when: 'in the evaluation before training',
    isTime: () => stage('evaluation')() && started().length >= 2,
    guards: true,
  },
  {
    when: 'in the first training step',
    isTime: () => count('micro-step') >= 1 && count('checkpoint') === 0,
    guards: true,
    overrides: {
      'policy.model': { hiddenSize: 96, layers: 3, heads: 4, kvHeads: 2, ffSize: 256, context: 1024 },
      'training.microStepTokens': 1024,
    },
  },
  {
    when: 'after the first checkpoint, also the guards',
    isTime: () => count('checkpoint') >= 1 && running().length >= 2,
    guards: false,
  },
]

test.each(MOMENTS)(
  'kill -9 of everything $when loses nothing',
  { timeout: LIMIT_MS },
  async ({ isTime, guards, overrides }) => {
    const file = slowRun(overrides)
    const gyre = place.gyre('train', file, '--json')
    await gyre.until('its time comes', () => isTime() || undefined)
    const harnesses = started()
    killEverything(gyre, guards)
    await gyre.ended
    // The guard of a killed run ends its harnesses; where it was killed too, the next start does.
    if (guards) await goneSoon(harnesses)
    const interrupted = running()

    const end = await place.gyre('train', file, '--json', '--resume').ended
    expect(end.code, end.err).toBe(0)
    expect(place.summary('resumed')).toMatchObject({
      outcome: 'done',
      trainingSteps: 4,
      harnessErrors: 0,
      tokensMismatched: 0,
    })
    expect(harnesses.filter(isRunning)).toEqual([])
    expectTotals()
    place.ledger('resumed', (store) => {
      expectSoundLedger(store, BOOKS)
      for (const row of interrupted) expectRunAgain(store, row)
    })
    expect(await place.leftovers()).toEqual([])
  },
)

test('SIGINT ends a run in order, and --resume goes on', { timeout: LIMIT_MS }, async () => {
  const file = slowRun()
  const gyre = place.gyre('train', file)
  await gyre.until('executions run', () => (stage('training')() && running().length >= 2) || undefined)
  gyre.kill('SIGINT')
  const stopped = await gyre.ended
  expect([stopped.code, stopped.signal]).toEqual([130, null])
  expect(stopped.err).toMatch(/--resume/)
  expect(await place.leftovers()).toEqual([])
  expect(running(), 'executions that the ledger takes for running').toEqual([])
  const interrupted = place.ledger('resumed', (store) =>
    store.executions().filter((row) => row.outcome === 'interrupted'),
  )
  expect(interrupted.length).toBeGreaterThan(0)

  const end = await place.gyre('train', file, '--json', '--resume').ended
  expect(end.code, end.err).toBe(0)
  place.ledger('resumed', (store) => {
    expectSoundLedger(store, BOOKS)
    for (const row of interrupted) expectRunAgain(store, row)
  })
  expectTotals()
  expect(place.summary('resumed')).toMatchObject({ outcome: 'done', harnessErrors: 0, tokensMismatched: 0 })
  expect(await place.leftovers()).toEqual([])
})

test('SIGINT in the cold start ends the run in order too', { timeout: LIMIT_MS }, async () => {
  const file = slowRun()
  const gyre = place.gyre('train', file)
  await gyre.until('the cold start', () => stage('cold start')() || undefined)
  gyre.kill('SIGINT')
  const stopped = await gyre.ended
  expect([stopped.code, stopped.signal], stopped.err).toEqual([130, null])
  expect(stopped.err).toMatch(/--resume/)
  expect(await place.leftovers()).toEqual([])
})

/** Its record says that it was cut short, and a later attempt of the same member has a score. */
function expectRunAgain(store: Store, row: ExecutionRow): void {
  const id = row.executionId
  expect(store.execution(id), id).toMatchObject({ state: 'excluded', outcome: 'interrupted' })
  const attempts = store.executions(row.groupId).filter((other) => other.member === row.member)
  expect(attempts.at(-1), id).toMatchObject({ state: 'scored' })
  expect(attempts.at(-1)?.attempt, id).toBeGreaterThan(row.attempt)
}

/** The summary counts what happened in every attempt of the run, as its log has it. */
function expectTotals(): void {
  const transfers = place.events('resumed').filter((event) => event['kind'] === 'role-transfer')
  const live = transfers.filter((event) => event['to'] === 'training' && Number(event['liveExecutions']) > 0)
  const summary = place.summary('resumed')
  expect(summary).toMatchObject({ roleTransfers: transfers.length, liveRoleTransfers: live.length })
  place.ledger('resumed', (store) => {
    const scored = store.executions().filter((row) => row.state === 'scored')
    const calls = scored.reduce((sum, row) => sum + store.calls(row.executionId).length, 0)
    expect(summary['modelCalls']).toBeGreaterThanOrEqual(calls)
  })
}

/** Process ids of the harnesses that were started. */
function started(): readonly number[] {
  const file = place.file('started.jsonl')
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8').trim().split('\n')
  return lines.map((line) => (JSON.parse(line) as { readonly pid: number }).pid)
}

/** Executions in the middle of their life, by the ledger. */
function running(): readonly ExecutionRow[] {
  if (!existsSync(join(place.run('resumed'), 'ledger.sqlite'))) return []
  return place.ledger('resumed', (store) =>
    store.executions().filter((row) => row.state === 'running' || row.state === 'evaluating'),
  )
}

/** The control process and its cells at once; the guards too when they are not to help. */
function killEverything(gyre: GyreProcess, withoutGuards: boolean): void {
  const family = familyOf(gyre.pid)
  const commands = new Map(processes().map((p) => [p.pid, p.command]))
  const isOurs = (command: string): boolean =>
    command.startsWith('gyre cell-') || (!withoutGuards && command.includes('gyre-guard'))
  const doomed = family.filter((pid) => pid === gyre.pid || isOurs(commands.get(pid) ?? ''))
  // Guards first: they would act on the death of the control process.
  for (const pid of doomed.toReversed()) killQuietly(pid)
}

async function goneSoon(pids: readonly number[]): Promise<void> {
  await expect.poll(() => pids.filter(isRunning), { timeout: 20_000, interval: 100 }).toEqual([])
}
