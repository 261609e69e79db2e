import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest'
import { CommandHarness } from '../adapters/harness/command/command-harness.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../adapters/sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../adapters/sandbox/process/process-sandbox.ts'
import { HarborScorer } from '../adapters/scorer/harbor/harbor-scorer.ts'
import { executionId } from '../core/ids.ts'
import { listProcesses } from '../host/process-table.ts'
import type { Sandbox } from '../ports/sandbox.ts'
import { type Rig, says, startRig, until } from '../../test/support/gateway-rig.ts'
import { type ExecutionOrder, type ExecutionReport, type ExecutionSettings, runExecution } from './execution.ts'

const support = join(import.meta.dirname, '../../test/support')
const root = mkdtempSync(join(tmpdir(), 'gyre-execution-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))

const REWARD = 'if [ -e answer.txt ]; then echo 1; else echo 0; fi > "$LOGS_DIR/verifier/reward.txt"'
const never = new AbortController().signal
const SETTINGS: ExecutionSettings = {
  profile: 'generic',
  model: 'policy',
  contextWindow: 65_536,
  maxOutputTokens: 256,
  maxCalls: 0,
  temperature: 1,
  topP: 1,
  topK: 0,
  limits: { memoryBytes: 0, fileBytes: 8 << 20, processes: 0 },
  harnessTimeoutMs: 20_000,
  overallTimeoutMs: 60_000,
  evaluationRetries: 0,
  keepWorkspace: 'never',
}

const probe = await probeBubblewrap()
const sandboxes: readonly (readonly [string, (baseFolder: string) => Sandbox])[] = [
  ['process', (baseFolder) => new ProcessSandbox({ baseFolder, graceMs: 300 })],
  ['bubblewrap', (baseFolder) => new BubblewrapSandbox({ baseFolder, graceMs: 300 })],
]

describe.each(sandboxes.filter(([name]) => name !== 'bubblewrap' || probe.works))('an execution in %s', (_, make) => {
  let rig: Rig
  /** Seconds that nothing else on this machine sleeps. */
  let mark = ''
  let count = 0
  let base = ''

  beforeEach(async () => {
    mark = `9${Math.floor(Math.random() * 1e6)}.${process.pid}`
    base = mkdtempSync(join(root, 'base-'))
    rig = await startRig()
    rig.addEngine('engine', says(...Array.from({ length: 4 }, () => 'hello to you')))
  })
  afterEach(async () => {
    await rig[Symbol.asyncDispose]()
    const left = [...running(mark), ...(existsSync(join(base, 'sandbox')) ? workspaces(base) : [])]
    if (left.length > 0) throw new Error(`processes or folders were left behind: ${left.join(', ')}`)
  })

  interface Started {
    readonly report: Promise<ExecutionReport>
    readonly ended: () => boolean
    readonly hasStarted: () => boolean
  }

  function start(
    behaviour: string,
    over: Partial<ExecutionSettings> = {},
    signals: Partial<Pick<ExecutionOrder, 'stop' | 'cut'>> = {},
    testScript = REWARD,
    verifierTimeoutMs = 20_000,
  ): Started {
    const task = { name: 'wild', folder: mkdtempSync(join(root, 'task-')), instruction: 'go', agentTimeoutMs: 60_000 }
    mkdirSync(join(task.folder, 'environment'))
    mkdirSync(join(task.folder, 'tests'))
    writeFileSync(join(task.folder, 'tests/test.sh'), testScript.replaceAll('MARK', mark))
    const id = executionId(`wild-${count++}`)
    rig.route(id, 'engine')
    let terminated = false
    let workspace = ''
    const sandbox = make(join(base, 'sandbox'))
    const report = runExecution(
      {
        forwarding: rig.gateway,
        sandbox: {
          name: sandbox.name,
          sweep: () => sandbox.sweep(),
          create: async (spec) => {
            const instance = await sandbox.create(spec)
            workspace = instance.hostWorkspace
            return instance
          },
        },
        harness: new CommandHarness({
          argv: [process.execPath, join(support, 'wild-harness.mjs'), behaviour, mark],
          readOnlyFolders: [support],
        }),
        scorer: new HarborScorer(),
        gatewayUrl: rig.gateway.url,
        executionFolder: () => mkdtempSync(join(root, 'execution-')),
        settings: { ...SETTINGS, ...over },
      },
      {
        executionId: id,
        task: { ...task, verifierTimeoutMs },
        seed: 1,
        stop: never,
        ...signals,
        onTerminated: () => {
          terminated = true
        },
      },
    )
    const hasStarted = (): boolean => workspace !== '' && existsSync(join(workspace, 'started'))
    return { report, ended: () => terminated, hasStarted }
  }

  test.each([
    ['ends', {}, 'finished'],
    ['hangs', { harnessTimeoutMs: 2500 }, 'harness-timeout'],
    ['deaf', { harnessTimeoutMs: 2500 }, 'harness-timeout'],
    ['mute', { harnessTimeoutMs: 2500 }, 'harness-timeout'],
    ['forks', { harnessTimeoutMs: 2500 }, 'harness-timeout'],
    ['daemons', {}, 'finished'],
    ['floods', {}, 'harness-failed'],
  ] as const)(
    'of a harness that makes its call and %s is scored, and nothing of it stays',
    async (what, over, outcome) => {
      const { report, ended } = start(what, over)
      expect(await report).toMatchObject({ outcome, score: { reward: 1 }, error: undefined, modelCalls: 1 })
      expect(ended()).toBe(true)
    },
  )

  test.each(['hangs', 'deaf', 'forks'])('that is cut while its harness %s ends now and is scored', async (what) => {
    const cut = new AbortController()
    const { report, hasStarted } = start(what, {}, { cut: cut.signal })
    await until(hasStarted, 15_000)
    const sinceMs = performance.now()
    cut.abort()
    expect(await report).toMatchObject({ outcome: 'cut', score: { reward: 1 }, error: undefined, modelCalls: 1 })
    expect(performance.now() - sinceMs).toBeLessThan(10_000)
  })

  test('that is cut before its first call has nothing to score, and is no silent harness', async () => {
    const cut = new AbortController()
    const { report, hasStarted, ended } = start('silent', {}, { cut: cut.signal })
    await until(hasStarted, 15_000)
    cut.abort()
    const { outcome, score, error } = await report
    expect([outcome, score, error?.code, ended()]).toEqual(['cut', undefined, 'E_HARNESS_CUT', false])
  })

  test('that is cut while it is scored keeps its score and its outcome', async () => {
    const cut = new AbortController()
    const { report, ended } = start('ends', {}, { cut: cut.signal }, `sleep 1; ${REWARD}`)
    await until(ended, 15_000)
    cut.abort()
    expect(await report).toMatchObject({ outcome: 'finished', score: { reward: 1 } })
  })

  test('that is cut and stopped at once is interrupted: the run begins it anew', async () => {
    const signals = { cut: AbortSignal.abort(), stop: AbortSignal.abort() }
    expect(await start('hangs', {}, signals).report).toMatchObject({ outcome: 'interrupted', score: undefined })
  })

  test.each([
    ['hangs', 'sleep MARK'],
    ['ignores SIGTERM', "trap '' TERM; while :; do sleep MARK; done"],
    ['leaks daemons and hangs', '(setsid nohup sleep MARK >/dev/null 2>&1 &); trap "" TERM; sleep MARK; sleep MARK'],
  ])('whose scorer %s has no reward and says why', async (_what, script) => {
    const { report } = start('ends', {}, {}, script, 800)
    const { outcome, score, error } = await report
    expect([outcome, score, error?.code]).toEqual(['evaluation-failed', undefined, 'E_SCORER_TIMEOUT'])
  })

  test('whose scorer leaks daemons and reports a reward has it', async () => {
    const { report } = start('ends', {}, {}, `(setsid nohup sleep MARK >/dev/null 2>&1 &); ${REWARD}`)
    expect(await report).toMatchObject({ outcome: 'finished', score: { reward: 1 } })
  })

  test('that passes its overall time while it is scored is dropped, not given 0', async () => {
    const { report } = start('ends', { overallTimeoutMs: 4000 }, {}, 'sleep MARK', 60_000)
    const { outcome, score, error } = await report
    expect([outcome, score, error?.code]).toEqual(['overall-timeout', undefined, 'E_SCORER_FAILED'])
  })
})

/** Live processes that have the text in their command line. */
function running(text: string): readonly number[] {
  return listProcesses()
    .map((p) => p.pid)
    .filter((pid) => pid !== process.pid && commandLine(pid).includes(text))
}

function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
  } catch {
    return ''
  }
}

function listFolders(path: string): readonly string[] {
  return readdirSync(path, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : []))
}

function workspaces(base: string): readonly string[] {
  const owners = join(base, 'sandbox')
  return listFolders(owners).flatMap((owner) => listFolders(join(owners, owner)))
}
