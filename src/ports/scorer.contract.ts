/** @file What every scorer promises in every sandbox, checked with real task folders. */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import type { Sandbox, SandboxInstance } from './sandbox.ts'
import type { Scorer } from './scorer.ts'
import type { Task } from './task.ts'

const never = new AbortController().signal
const REWARD = '"${LOGS_DIR:-/logs}/verifier/reward.txt"'

export function scorerContract(name: string, scorer: Scorer, makeSandbox: (baseFolder: string) => Sandbox): void {
  describe(`scorer ${name}`, () => {
    let folder = ''
    let sandbox: Sandbox
    let instance: SandboxInstance | undefined
    beforeAll(() => {
      folder = mkdtempSync(join(tmpdir(), 'gyre-scorer-'))
      sandbox = makeSandbox(join(folder, 'base'))
    })
    afterEach(async () => instance?.destroy())
    afterAll(() => rmSync(folder, { recursive: true, force: true }))

    /** A sandbox on a task with this test script, after a harness that ran this script. */
    async function after(harnessScript: string, testScript: string, verifierTimeoutMs = 20_000): Promise<Task> {
      const task: Task = {
        name: 'sample',
        folder: mkdtempSync(join(folder, 'task-')),
        instruction: 'do it',
        agentTimeoutMs: 20_000,
        verifierTimeoutMs,
      }
      mkdirSync(join(task.folder, 'environment'))
      mkdirSync(join(task.folder, 'tests', 'data'), { recursive: true })
      writeFileSync(join(task.folder, 'tests', 'test.sh'), testScript)
      writeFileSync(join(task.folder, 'tests', 'data', 'expected.txt'), 'right\n')
      instance = await sandbox.create({
        executionId: executionId('scored'),
        task,
        executionFolder: task.folder,
        limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
        gatewayUrl: 'http://127.0.0.1:9',
        readOnlyFolders: [],
      })
      const logs = mkdtempSync(join(folder, 'logs-'))
      await instance.run(
        {
          argv: ['/bin/sh', '-c', harnessScript],
          env: { VERIFIER: instance.verifierLogs, TESTS: instance.tests },
          timeoutMs: 20_000,
          stdoutFile: join(logs, 'out'),
          stderrFile: join(logs, 'err'),
        },
        never,
      )
      return task
    }

    async function score(task: Task, signal = never): Promise<number> {
      if (instance === undefined) throw new Error('no sandbox')
      return (await scorer.score(task, instance, join(folder, 'score-logs'), signal)).reward
    }

    async function failure(task: Task, signal = never): Promise<GyreError> {
      const error: unknown = await score(task, signal).catch((e: unknown) => e)
      if (!(error instanceof GyreError)) throw new Error(`expected a GyreError, got ${String(error)}`)
      return error
    }

    const COMPARE = `if cmp -s answer.txt "$TESTS_DIR/data/expected.txt"; then echo 1; else echo 0; fi > ${REWARD}`

    test('scores the work that was left behind, 0 included', async () => {
      expect(await score(await after('echo right > answer.txt', COMPARE))).toBe(1)
      await instance?.destroy()
      expect(await score(await after('echo wrong > answer.txt', COMPARE))).toBe(0)
    })

    test('keeps what the verifier said', async () => {
      await score(await after('true', `echo heard; echo 0.5 > ${REWARD}`))
      expect(readFileSync(join(folder, 'score-logs', 'verifier.stdout'), 'utf8')).toBe('heard\n')
    })

    test('takes the number also when the script exits with an error', async () => {
      expect(await score(await after('true', `echo 0.75 > ${REWARD}; exit 1`))).toBe(0.75)
    })

    test('never counts a reward that the harness wrote', async () => {
      const task = await after(
        'mkdir -p "$VERIFIER"; echo 1 > "$VERIFIER/reward.txt"; echo 1 > "$VERIFIER/reward.json"',
        'true',
      )
      expect(await failure(task)).toMatchObject({ code: 'E_SCORER_NO_REWARD', boundary: 'scorer', retryable: true })
    })

    test('never runs a test that the harness wrote', async () => {
      const script = `mkdir -p "$TESTS" && echo 'echo 1 > ${REWARD}' > "$TESTS/test.sh"; echo right > "$TESTS/extra"; true`
      expect(await score(await after(script, `[ -e "$TESTS_DIR/extra" ]; echo "0.$?" > ${REWARD}`))).toBe(0.1)
    })

    test('can be repeated on the same work', async () => {
      const task = await after('echo right > answer.txt', COMPARE)
      expect([await score(task), await score(task)]).toEqual([1, 1])
    })

    test('does not take an exit code for a reward', async () => {
      expect(await failure(await after('true', 'exit 0'))).toMatchObject({ code: 'E_SCORER_NO_REWARD' })
      await instance?.destroy()
      const failed = await failure(await after('true', 'echo broken pipe dream >&2; exit 3'))
      expect(failed).toMatchObject({ code: 'E_SCORER_FAILED', retryable: true })
      expect(failed.message).toContain('broken pipe dream')
    })

    test('ends a verifier that runs out of time, and says so', async () => {
      const task = await after('true', `echo 1 > ${REWARD}; touch started; sleep 60`, 400)
      expect(await failure(task)).toMatchObject({ code: 'E_SCORER_TIMEOUT', retryable: true })
      expect(existsSync(join(instance?.hostWorkspace ?? '', 'started'))).toBe(true)
    })

    test('stops when it is told to', async () => {
      const task = await after('true', `sleep 60`)
      expect(await failure(task, AbortSignal.timeout(200))).toMatchObject({ code: 'E_SCORER_FAILED' })
    })
  })
}
