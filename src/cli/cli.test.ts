import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import picocolors from 'picocolors'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import { executionId, groupId, queryId } from '../core/ids.ts'
import { expectedCall } from '../ports/store-crash.contract.ts'
import { openRunLog } from '../telemetry/run-log.ts'
import type { CliContext } from './context.ts'
import { reportFailure } from './failure.ts'
import { buildProgram } from './program.ts'

const cwd = mkdtempSync(join(tmpdir(), 'gyre-cli-'))
afterAll(() => rmSync(cwd, { recursive: true, force: true }))

interface Ended {
  readonly code: number
  readonly out: string
  readonly err: string
}

/** The command as main.ts runs it, in this process. */
async function gyre(...args: string[]): Promise<Ended> {
  const out: string[] = []
  const err: string[] = []
  const context: CliContext = {
    cwd,
    home: cwd,
    env: process.env,
    print: (text) => out.push(text),
    warn: (text) => err.push(text),
    isTty: false,
    width: () => 100,
    colors: picocolors.createColors(false),
  }
  let code = 0
  try {
    await buildProgram(context).parseAsync(['node', 'gyre', ...args])
  } catch (error) {
    code = reportFailure(error, context, args.includes('--json'))
  }
  return { code, out: out.join('\n'), err: err.join('\n') }
}

describe('gyre', () => {
  test('teaches with examples', async () => {
    const { code, out } = await gyre('--help')
    expect(code).toBe(0)
    expect(out).toMatch(/Examples:\n.*gyre doctor/)
    expect((await gyre('train', '--help')).out).toMatch(/Examples:/)
  })

  test('exits with 2 for what it does not know, and says how to learn more', async () => {
    expect(await gyre('frobnicate')).toMatchObject({
      code: 2,
      err: expect.stringMatching(/frobnicate.*--help/s) as string,
    })
    expect(await gyre('train')).toMatchObject({ code: 2, err: expect.stringContaining('run.yaml') as string })
    expect((await gyre('train', 'x.yaml', '--unknown')).code).toBe(2)
  })

  test('prints the schema of a run file', async () => {
    expect(JSON.parse((await gyre('schema')).out)).toMatchObject({ title: 'Gyre run file' })
  })

  test('an error without a code is shown as a bug, with its stack', async () => {
    const broken = { err: '' }
    const context = { warn: (text: string) => (broken.err = text), colors: picocolors.createColors(false) }
    const code = reportFailure(new TypeError('x is not a function'), context as unknown as CliContext, false)
    expect([code, broken.err]).toEqual([
      1,
      expect.stringMatching(/this is a bug in gyre.*TypeError: x is not.*cli\.test/s),
    ])
  })

  test('runs as a program of its own', () => {
    const main = join(import.meta.dirname, 'main.ts')
    const end = spawnSync(process.execPath, ['--import', 'tsx', main, 'train', 'nope.yaml', '--json'], {
      encoding: 'utf8',
    })
    expect(end.status).toBe(2)
    expect(JSON.parse(end.stdout)).toMatchObject({ error: { code: 'E_CONFIG_NOT_FOUND', boundary: 'config' } })
  })
})

describe('gyre train --dry-run', () => {
  beforeAll(() => {
    writeFileSync(join(cwd, 'ok.yaml'), 'tasks: { generate: {} }\n')
    writeFileSync(join(cwd, 'bad.yaml'), 'tasks: { generate: {} }\nrolout: {}\nseed: x\n')
  })

  test('prints the resolved config and the numbers that follow', async () => {
    const { code, out } = await gyre('train', 'ok.yaml', 'rollout.groupSize=4', '--dry-run')
    expect(code).toBe(0)
    expect(out).toMatch(/^name: ok\n.* groupSize: 4\n.*# dispatch depth Q_b/s)
    const json = JSON.parse((await gyre('train', 'ok.yaml', '--dry-run', '--json')).out) as unknown
    expect(json).toMatchObject({ derived: { dispatchDepth: 10 }, warnings: [] })
  })

  test('names every mistake once, each with its code', async () => {
    const { code, err } = await gyre('train', 'bad.yaml', '--dry-run')
    expect(code).toBe(2)
    expect(err.split('\n')).toEqual([
      'error E_CONFIG_TYPE: bad.yaml:3:1: seed: expected a whole number, found the text "x"',
      'error E_CONFIG_UNKNOWN_KEY: bad.yaml:2:1: unknown key rolout: did you mean rollout?',
      '  more about these codes: docs/errors.md',
    ])
  })
})

describe('a run folder', () => {
  const call = expectedCall(0)
  beforeAll(async () => {
    const folder = join(cwd, 'runs/demo')
    mkdirSync(folder, { recursive: true })
    const store = openSqliteStore(join(folder, 'ledger.sqlite'))
    store.putGroup(
      {
        groupId: groupId('g0'),
        queryId: queryId('q0'),
        taskName: 'train-001',
        dispatchVersion: 0,
        burst: 0,
        state: 'ready',
        consumedStep: undefined,
      },
      ['e0', 'e1'].map((id, member) => ({
        executionId: executionId(id),
        groupId: groupId('g0'),
        member,
        attempt: 0,
        state: 'scored',
        outcome: member === 0 ? 'finished' : 'harness-timeout',
        reward: member === 0 ? 1 : 0.2,
        parts: {},
        errorCode: member === 0 ? undefined : 'E_HARNESS_TIMEOUT',
        errorMessage: undefined,
        startedAtMs: 1,
        endedAtMs: 2,
      })),
    )
    await store.appendCall(call)
    store.putLeaves(call.executionId, [
      { executionId: call.executionId, leaf: 2, role: 'main', fate: 'picked', policyTokens: 3000, trainedTokens: 3000 },
    ])
    store.commitCheckpoint({ step: 1, policyVersion: 1, burst: 0, folder: 'checkpoints/step_1' }, [
      { step: 1, burst: 0, groups: [groupId('g0')], metrics: { reward: 0.6 } },
    ])
    store.close()
    const log = openRunLog(folder, { now: () => 1000 })
    log.step(1, { reward: 0.6, loss: 0.125 })
    log.step(2, { reward: 0.8, loss: 0.1 })
    log.close()
  })

  test('gyre status takes the latest run and sums it up', async () => {
    const { code, out } = await gyre('status')
    expect(code).toBe(0)
    expect(out).toMatch(/run +demo +stopped/)
    expect(out).toMatch(/step +2 of \?, checkpoint at 1, policy version 1/)
    expect(out).toMatch(/reward +▅▇ 0\.800/)
    expect(out).toMatch(/executions +1 finished, 1 harness-timeout/)
    expect(out).toMatch(/errors +1 E_HARNESS_TIMEOUT/)
    expect(out).toMatch(/--resume/)
  })

  test('gyre status --json is for programs, --executions lists them', async () => {
    const { out } = await gyre('status', 'demo', '--json', '--executions')
    expect(JSON.parse(out)).toMatchObject({ run: 'demo', isRunning: false, step: 2, rows: [{}, {}] })
    expect((await gyre('status', 'runs/demo', '--executions')).out).toMatch(
      /^e1 +scored +harness-timeout +reward 0\.20$/m,
    )
  })

  test('gyre status says running while a process holds the ledger', async () => {
    const store = openSqliteStore(join(cwd, 'runs/demo/ledger.sqlite'))
    expect((await gyre('status')).out).toMatch(/run +demo +running/)
    store.close()
  })

  test('gyre tree prints nodes, roles and fates', async () => {
    const { code, out } = await gyre('tree', 'e0')
    expect(code).toBe(0)
    expect(out).toMatch(/execution e0: 1 calls, 2 nodes, 6000 tokens/)
    expect(out).toMatch(/policy 3000 tok +main.*\[picked, 3000 trained\]/)
    expect(out).toMatch(/group g0, member 0, attempt 0: finished, reward 1$/)
    expect(JSON.parse((await gyre('tree', 'e0', '--json')).out)).toMatchObject({
      calls: [{ callId: 'c0' }],
      leaves: [{ leaf: 2 }],
    })
  })

  test.each([
    [['status', 'nope'], /no run "nope".*known are demo/],
    [['status', '--runs', 'elsewhere'], /no run in .*elsewhere yet/],
    [['tree', 'x9'], /no execution "x9".*the latest are e0, e1/],
    [['tree', 'e'], /2 begin so, among them e0, e1/],
  ])('what is not there is named, with what is: %j', async (args, message) => {
    const { code, err } = await gyre(...args)
    expect([code, err]).toEqual([2, expect.stringMatching(message)])
  })
})

test('gyre doctor checks the machine and tells how to fix it', async () => {
  const { out } = await gyre('doctor', '--offline', '--json')
  const { checks } = JSON.parse(out) as { checks: { name: string; state: string; fix?: string }[] }
  expect(checks.map((check) => check.name)).toEqual(
    expect.arrayContaining([
      'Node.js',
      'WebAssembly',
      'engine kernels',
      'bubblewrap',
      'pi',
      'free disk',
      'socket paths',
    ]),
  )
  expect(checks.find((check) => check.name === 'Node.js')?.state).toBe('ok')
  expect(checks.find((check) => check.name === 'WebAssembly')?.state).toBe('ok')
  expect(checks.filter((check) => check.state === 'problem' && check.fix === undefined)).toEqual([])
})
