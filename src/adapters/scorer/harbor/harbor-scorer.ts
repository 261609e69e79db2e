/**
 * @file Runs a task's `tests/test.sh` in the sandbox, on the workspace as it is, and reads the number it reports.
 *
 * The tests come into the sandbox here and never before. `test.sh` is run by bash in the workspace with two
 * variables: `TESTS_DIR`, where its own folder is, and `LOGS_DIR`, whose `verifier` folder takes the report. In a
 * sandbox with a file system of its own they are Harbor's `/tests` and `/logs`; elsewhere a script that is to run in
 * both writes `"${LOGS_DIR:-/logs}/verifier/reward.txt"`.
 */
import { mkdirSync, readFileSync } from 'node:fs'
import { mkdir, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'
import { copyConfined } from '../../../host/copy-confined.ts'
import { findProgram } from '../../../host/find-program.ts'
import { lastLine } from '../../../host/last-line.ts'
import type { ProcessEnd, SandboxInstance } from '../../../ports/sandbox.ts'
import type { Score, Scorer } from '../../../ports/scorer.ts'
import type { Task } from '../../../ports/task.ts'
import { readReward } from './read-reward.ts'

const HARBOR_LOGS = '/logs/verifier'

export class HarborScorer implements Scorer {
  readonly name = 'harbor'
  readonly #shell = findProgram('bash', '/bin:/usr/bin:/usr/local/bin', '/') === undefined ? 'sh' : 'bash'

  async score(task: Task, sandbox: SandboxInstance, logFolder: string, signal: AbortSignal): Promise<Score> {
    const end = await this.#runTests(task, sandbox, logFolder, signal)
    const heard = `see ${join(logFolder, 'verifier.stdout')}`
    if (signal.aborted) throw scorerError('E_SCORER_FAILED', `scoring of task ${task.name} was stopped`)
    if (end.timedOut) {
      throw scorerError(
        'E_SCORER_TIMEOUT',
        `tests/test.sh of task ${task.name} ran longer than ${task.verifierTimeoutMs} ms and was ended: raise [verifier] timeout_sec, or ${heard}`,
      )
    }
    const score = readReward(sandbox.hostVerifierLogs)
    if (score !== undefined) return score
    if (end.exitCode !== 0) {
      const how = end.exitCode === undefined ? `died of ${end.signal ?? 'a signal'}` : `exited with ${end.exitCode}`
      const said = lastLine(join(logFolder, 'verifier.stderr'))
      throw scorerError(
        'E_SCORER_FAILED',
        `tests/test.sh of task ${task.name} ${how} and reported no reward${said === '' ? '' : ` ("${said}")`}: ${heard}`,
      )
    }
    throw scorerError('E_SCORER_NO_REWARD', `${missingReport(task, sandbox)}: ${heard}`)
  }

  async #runTests(task: Task, sandbox: SandboxInstance, logFolder: string, signal: AbortSignal): Promise<ProcessEnd> {
    try {
      mkdirSync(logFolder, { recursive: true })
      // Whatever the harness put there must neither count as a report nor stand in for a test.
      for (const folder of [sandbox.hostVerifierLogs, sandbox.hostTests])
        await rm(folder, { recursive: true, force: true })
      await mkdir(sandbox.hostVerifierLogs, { recursive: true })
      await copyConfined(join(task.folder, 'tests'), sandbox.hostTests, () => false)
      return await sandbox.run(
        {
          argv: [this.#shell, join(sandbox.tests, 'test.sh')],
          env: { LOGS_DIR: dirname(sandbox.verifierLogs), TESTS_DIR: sandbox.tests },
          timeoutMs: task.verifierTimeoutMs,
          stdoutFile: join(logFolder, 'verifier.stdout'),
          stderrFile: join(logFolder, 'verifier.stderr'),
        },
        signal,
      )
    } catch (error) {
      throw scorerError('E_SCORER_FAILED', `cannot run the tests of task ${task.name}: ${errorText(error)}`, error)
    }
  }
}

function missingReport(task: Task, sandbox: SandboxInstance): string {
  const script = readFileSync(join(task.folder, 'tests', 'test.sh'), 'utf8')
  const base = `tests/test.sh of task ${task.name} left no reward.json, reward.txt or ctrf.json in ${sandbox.verifierLogs}`
  const fixed = script.includes(HARBOR_LOGS) && !script.includes('LOGS_DIR')
  return fixed && sandbox.verifierLogs !== HARBOR_LOGS
    ? `${base}; it writes to ${HARBOR_LOGS}, which this sandbox has not: write to "\${LOGS_DIR:-/logs}/verifier" instead`
    : base
}

function scorerError(
  code: 'E_SCORER_TIMEOUT' | 'E_SCORER_FAILED' | 'E_SCORER_NO_REWARD',
  message: string,
  cause?: unknown,
): GyreError {
  return new GyreError(message, { boundary: 'scorer', code, retryable: true, cause })
}
