import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ExecutionRow } from '../../src/ports/store.ts'
import { type Ended, type Overrides, Place, STEADY_HARNESS } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'

const LIMIT_MS = 180_000
const BOOKS = { groupSize: 2, groupsPerStep: 1, steps: 1 }
const place = new Place()
const SMALL: Overrides = {
  'rollout.groupSize': 2,
  'training.groupsPerStep': 1,
  'training.stepsPerBurst': 1,
  'training.steps': 1,
}

/** A policy and two task folders, from a run that works. */
beforeAll(async () => {
  const tasks = { train: 3, heldOut: 1, minStops: 2, maxStops: 2 }
  const end = await place.gyre('train', place.runFile('base', { ...SMALL, 'tasks.generate': tasks })).ended
  if (end.code !== 0) throw new Error(`the run that the others start from failed:\n${end.err}`)
}, LIMIT_MS)
afterAll(async () => place.close(), LIMIT_MS)

/** Folder tasks and a policy that is not generated; the shape of the model is in its folder. */
function fromFolders(overrides: Overrides): Overrides {
  return {
    ...SMALL,
    'policy.init': 'folder',
    'policy.folder': join(place.run('base'), 'checkpoints/step_1'),
    'policy.model': { context: 1024 },
    'policy.tokenizer.vocabSize': undefined,
    'tasks.generate': undefined,
    'tasks.train': join(place.run('base'), 'tasks/train'),
    'tasks.heldOut': join(place.run('base'), 'tasks/held-out'),
    'warmstart.enabled': false,
    'warmstart.demonstrations': undefined,
    'warmstart.excerptSteps': undefined,
    'warmstart.steps': undefined,
    ...overrides,
  }
}

async function train(name: string, overrides: Overrides): Promise<Ended> {
  const end = await place.gyre('train', place.runFile(name, fromFolders(overrides))).ended
  expect(await place.leftovers()).toEqual([])
  return end
}

function executions(name: string): readonly ExecutionRow[] {
  return place.ledger(name, (store) => store.executions())
}

describe('a harness', () => {
  test.each([
    ['never calls the model', ['true'], 'E_HARNESS_NO_CALLS'],
    ['crashes at once', ['sh', '-c', 'exit 3'], 'E_HARNESS_CRASHED'],
  ])('that %s ends the run with the reason', { timeout: LIMIT_MS }, async (_, argv, code) => {
    const end = await train(code, { 'harness.argv': argv })
    expect([end.code, end.signal]).toEqual([1, null])
    expect(end.err).toMatch(new RegExp(`error ${code}: .*without one model call`))
    for (const row of executions(code)) {
      expect(row).toMatchObject({ state: 'excluded', outcome: 'harness-failed', errorCode: code })
      expect(row.reward).toBeUndefined()
    }
  })

  test('that fails after its calls is scored, and its failure is kept apart', { timeout: LIMIT_MS }, async () => {
    const end = await train('fails', { 'harness.argv': ['sh', '-c', `node ${STEADY_HARNESS}; exit 3`] })
    expect(end.code, end.err).toBe(0)
    for (const row of executions('fails')) expect(row).toMatchObject({ state: 'scored', outcome: 'harness-failed' })
    place.ledger('fails', (store) => expectSoundLedger(store, BOOKS))
  })

  test('that ignores SIGTERM is ended by its timeout and still scored', { timeout: LIMIT_MS }, async () => {
    const end = await train('deaf', {
      'harness.argv': ['sh', '-c', `trap '' TERM; node ${STEADY_HARNESS}; while :; do sleep 1; done`],
      'harness.timeout': '4s',
    })
    expect(end.code, end.err).toBe(0)
    for (const row of executions('deaf')) expect(row).toMatchObject({ state: 'scored', outcome: 'harness-timeout' })
    place.ledger('deaf', (store) => expectSoundLedger(store, BOOKS))
  })
})

test(
  'a scorer that hangs gives no reward; when no group can be scored the run says so',
  { timeout: LIMIT_MS },
  async () => {
    const end = await train('hanging', {
      'tasks.train': hangingTasks('hanging', () => true),
      'rollout.evaluationRetries': 0,
      'rollout.excludedGroupsLimit': 2,
    })
    expect([end.code, end.signal]).toEqual([1, null])
    expect(end.err).toMatch(/error E_TRAINER_RUN_FAILED: .*(excluded|group)/)
    const trained = executions('hanging').filter((row) => row.groupId.startsWith('g'))
    const dropped = trained.filter((row) => row.outcome === 'evaluation-failed')
    expect(dropped.length).toBeGreaterThanOrEqual(2)
    for (const row of dropped) {
      expect(row).toMatchObject({ state: 'excluded', errorCode: 'E_SCORER_TIMEOUT' })
      expect(row.reward).toBeUndefined()
    }
    expect(trained.filter((row) => row.state === 'scored')).toEqual([])
    place.ledger('hanging', (store) => {
      expect(store.steps()).toEqual([])
      expect(store.groups().filter((group) => group.state === 'consumed')).toEqual([])
    })
  },
)

/** The tasks of the base run, some with a scorer that never ends. */
function hangingTasks(name: string, hangs: (task: string) => boolean): string {
  const tasks = place.file(`${name}-tasks`)
  cpSync(join(place.run('base'), 'tasks/train'), tasks, { recursive: true })
  for (const task of readdirSync(tasks).filter(hangs)) {
    writeFileSync(join(tasks, task, 'tests/test.sh'), 'sleep 1000\n')
    writeFileSync(join(tasks, task, 'task.toml'), 'version = "1.0"\n[verifier]\ntimeout_sec = 1.0\n')
  }
  return tasks
}

describe('a task that never gets a score', () => {
  const overrides = { 'rollout.evaluationRetries': 0, 'rollout.excludedGroupsLimit': 100 }

  test('is parked, the run goes on with the others, and status says so', { timeout: LIMIT_MS }, async () => {
    const [poison = ''] = readdirSync(join(place.run('base'), 'tasks/train'))
    const tasks = hangingTasks('poison', (task) => task === poison)
    const end = await train('poison', { ...overrides, 'tasks.train': tasks, 'training.steps': 10 })
    expect(end.code, end.err).toBe(0)
    const reason = expect.stringMatching(/^3 groups in a row .*: 6 E_SCORER_TIMEOUT$/) as string
    const parked = [{ task: poison, groups: [expect.any(String), expect.any(String), expect.any(String)], reason }]
    expect(place.summary('poison')).toMatchObject({ outcome: 'done', trainingSteps: 10, parkedTasks: parked })
    place.ledger('poison', (store) => {
      const lost = store.groups().filter((group) => group.state === 'excluded')
      expect(new Set(lost.map((group) => group.taskName))).toEqual(new Set([poison]))
      // Those that were out already when it was parked, and none after.
      expect(lost.length).toBeLessThanOrEqual(4)
      expectSoundLedger(store, { ...BOOKS, steps: 10 })
    })
    const status = await place.gyre('status', 'poison', '--runs', place.file('runs')).ended
    expect(status.out).toMatch(new RegExp(`parked +${poison}: 3 groups in a row .*E_SCORER_TIMEOUT`))
  })

  test('ends the run when there is no other, and names each', { timeout: LIMIT_MS }, async () => {
    const tasks = hangingTasks('all-poison', () => true)
    const end = await train('all-poison', { ...overrides, 'tasks.train': tasks })
    expect([end.code, end.signal]).toEqual([1, null])
    expect(end.err).toMatch(/error E_TRAINER_RUN_FAILED: .*every task is parked/)
    for (const task of readdirSync(tasks)) expect(end.err).toContain(`${task} (3 groups in a row`)
  })
})

describe('a request to the gateway of a run', () => {
  interface Told {
    readonly baseUrl: string
    readonly apiKey: string
    readonly model: string
  }
  let told: Told
  let busy: Ended
  const heard = new Map<string, { readonly status: number; readonly text: string }>()
  let end: Ended
  const ask = async (name: string, url: string, key: string, body: string): Promise<void> => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` }
    const response = await fetch(`${url}/chat/completions`, { method: 'POST', headers, body })
    heard.set(name, { status: response.status, text: await response.text() })
  }

  beforeAll(async () => {
    mkdirSync(place.file('told'))
    const tell = place.file('told/started.jsonl')
    const file = place.runFile(
      'gateway',
      fromFolders({ 'gateway.bodyLimit': '64KiB', 'harness.env': { STEADY_PAUSE_MS: '1500', STEADY_TELL: tell } }),
    )
    const gyre = place.gyre('train', file)
    told = await gyre.until('a harness starts', () => {
      const [line] = existsSync(tell) ? readFileSync(tell, 'utf8').split('\n') : []
      return line === undefined || line === '' ? undefined : (JSON.parse(line) as Told)
    })
    const good = JSON.stringify({ model: told.model, messages: [{ role: 'user', content: 'hello' }] })
    const { baseUrl, apiKey } = told
    await ask('malformed', baseUrl, apiKey, '{"messages": [')
    await ask('unknown', baseUrl.replace(/\/x\/[^/]+/, '/x/nobody'), apiKey, good)
    await ask('another key', baseUrl, 'not-the-key', good)
    await ask('too large', baseUrl, apiKey, good.replace('hello', 'hello '.repeat(20_000)))
    await ask('no messages', baseUrl, apiKey, JSON.stringify({ model: told.model }))
    busy = await place.gyre('train', file, '--resume').ended
    end = await gyre.ended
  }, LIMIT_MS)

  test.each([
    ['malformed', 400, 'E_WIRE_MALFORMED', /not JSON/],
    ['no messages', 400, 'E_WIRE_', /messages/],
    ['unknown', 404, 'E_GATEWAY_UNKNOWN_EXECUTION', /no execution .*nobody/],
    ['another key', 401, 'E_GATEWAY_UNAUTHORIZED', /another key/],
    ['too large', 413, 'E_GATEWAY_BODY_TOO_LARGE', /limit of 65536 bytes/],
  ])('that is wrong (%s) gets %i and a typed, helpful error', (name, status, code, text) => {
    const answer = heard.get(name)
    expect([answer?.status, answer?.text]).toEqual([status, expect.stringMatching(text)])
    expect(answer?.text).toContain(code)
    expect(JSON.parse(answer?.text ?? '')).toHaveProperty('error.message')
  })

  test('is no error of the harness or of the run', async () => {
    expect(end.code, end.err).toBe(0)
    expect(place.summary('gateway')).toMatchObject({ outcome: 'done', harnessErrors: 0, tokensMismatched: 0 })
    place.ledger('gateway', (store) => expectSoundLedger(store, BOOKS))
    expect(await place.leftovers()).toEqual([])
  })

  test('and a second command on the same run is refused while the first one trains', () => {
    expect(busy.code).toBe(2)
    expect(busy.err).toMatch(/error E_CONFIG_RUN_BUSY: process \d+ is training/)
  })
})
