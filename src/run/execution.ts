/**
 * @file The life of one execution: sandbox, harness, score. Every way it can end is an outcome of its own,
 * and a failure is never a reward 0 in disguise.
 */
import { cp } from 'node:fs/promises'
import { join } from 'node:path'
import { errorText, GyreError } from '../core/errors.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { ForwardingPoint, OpenExecution } from '../ports/forwarding.ts'
import type { Harness } from '../ports/harness.ts'
import type { ProcessEnd, Sandbox, SandboxInstance, SandboxLimits } from '../ports/sandbox.ts'
import type { Score, Scorer } from '../ports/scorer.ts'
import type { ExecutionOutcome } from '../ports/store.ts'
import type { Task } from '../ports/task.ts'

export interface ExecutionSettings {
  readonly profile: OpenExecution['profile']
  readonly model: string
  readonly contextWindow: number
  readonly maxOutputTokens: number
  readonly maxCalls: number
  readonly temperature: number
  readonly topP: number
  readonly topK: number
  readonly limits: SandboxLimits
  /** The run's bound on a task's own timeout. [ms] */
  readonly harnessTimeoutMs: number
  /** Launch to score; an execution that passes it is dropped. [ms] */
  readonly overallTimeoutMs: number
  readonly evaluationRetries: number
  /** Whose workspaces stay in the execution's folder after the score. */
  readonly keepWorkspace: 'never' | 'failed' | 'always'
}

export interface ExecutionDeps {
  readonly forwarding: ForwardingPoint
  readonly sandbox: Sandbox
  readonly harness: Harness
  readonly scorer: Scorer
  readonly gatewayUrl: string
  /** Creates and returns the host folder of an execution's logs. */
  readonly executionFolder: (executionId: ExecutionId) => string
  readonly settings: ExecutionSettings
}

export interface ExecutionReport {
  readonly outcome: ExecutionOutcome
  readonly score: Score | undefined
  readonly error: GyreError | undefined
  readonly modelCalls: number
  readonly sampledTokens: number
  readonly harnessErrors: number
}

/** Told when the harness has ended, its slot is free, and its work goes to the scorer. Not called for a failure. */
export type OnTerminated = () => void

/** Runs one attempt to its end. Never throws: what went wrong is in the report. */
export async function runExecution(
  deps: ExecutionDeps,
  executionId: ExecutionId,
  task: Task,
  seed: number,
  onTerminated: OnTerminated,
  stop: AbortSignal,
): Promise<ExecutionReport> {
  const overall = AbortSignal.timeout(deps.settings.overallTimeoutMs)
  const signal = AbortSignal.any([stop, overall])
  const folder = deps.executionFolder(executionId)
  let sandbox: SandboxInstance
  try {
    sandbox = await deps.sandbox.create({
      executionId,
      task,
      executionFolder: folder,
      limits: deps.settings.limits,
      gatewayUrl: deps.gatewayUrl,
      readOnlyFolders: deps.harness.readOnlyFolders,
    })
  } catch (error) {
    return failed('infrastructure-failed', error, 'E_SANDBOX_CREATE', 'sandbox')
  }
  try {
    const attempt = { executionId, task, seed, sandbox, folder, onTerminated }
    const report = await runInSandbox(deps, attempt, stop, overall, signal)
    await keepWorkspace(deps.settings.keepWorkspace, attempt, report)
    return report
  } finally {
    await sandbox.destroy().catch(() => undefined)
  }
}

/** A copy for people to look at; failing to make it fails nothing. */
async function keepWorkspace(
  which: ExecutionSettings['keepWorkspace'],
  { sandbox, folder }: Attempt,
  report: ExecutionReport,
): Promise<void> {
  const isFailed = report.error !== undefined || report.outcome !== 'finished'
  if (which === 'never' || (which === 'failed' && !isFailed)) return
  const copy = cp(sandbox.hostWorkspace, join(folder, 'workspace'), { recursive: true, verbatimSymlinks: true })
  await copy.catch(() => undefined)
}

interface Attempt {
  readonly executionId: ExecutionId
  readonly task: Task
  readonly seed: number
  readonly sandbox: SandboxInstance
  readonly folder: string
  readonly onTerminated: OnTerminated
}

async function runInSandbox(
  deps: ExecutionDeps,
  attempt: Attempt,
  stop: AbortSignal,
  overall: AbortSignal,
  signal: AbortSignal,
): Promise<ExecutionReport> {
  const { settings } = deps
  const endpoint = deps.forwarding.openExecution(openSpec(settings, attempt))
  let end: ProcessEnd | undefined
  let launchError: unknown
  try {
    end = await deps.harness.launch(
      {
        sandbox: attempt.sandbox,
        instruction: attempt.task.instruction,
        endpoint: {
          baseUrl: endpoint.baseUrl.replace(deps.gatewayUrl, attempt.sandbox.gatewayUrl),
          apiKey: endpoint.apiKey,
          model: settings.model,
          contextWindow: settings.contextWindow,
          maxOutputTokens: settings.maxOutputTokens,
        },
        timeoutMs: Math.min(attempt.task.agentTimeoutMs, settings.harnessTimeoutMs),
        logFolder: attempt.folder,
      },
      signal,
    )
  } catch (error) {
    launchError = error
  }
  const calls = await deps.forwarding.closeExecution(attempt.executionId)
  const counts = {
    modelCalls: calls.modelCalls,
    sampledTokens: calls.sampledTokens,
    harnessErrors: calls.harnessErrors,
  }
  if (stop.aborted) {
    return { ...failed('interrupted', stop.reason, 'E_HARNESS_INTERRUPTED', 'harness'), ...counts }
  }
  if (overall.aborted) {
    return { ...failed('overall-timeout', overallError(settings), 'E_HARNESS_OVERALL_TIMEOUT', 'harness'), ...counts }
  }
  if (end === undefined) {
    return { ...failed('infrastructure-failed', launchError, 'E_HARNESS_LAUNCH', 'harness'), ...counts }
  }
  if (calls.modelCalls === 0) return { ...neverCalled(deps, end, attempt), ...counts }
  const outcome = end.timedOut ? 'harness-timeout' : end.exitCode === 0 ? 'finished' : 'harness-failed'
  attempt.onTerminated()
  return { ...(await scored(deps, attempt, outcome, overall, stop)), ...counts }
}

function openSpec(settings: ExecutionSettings, attempt: Attempt): OpenExecution {
  return {
    executionId: attempt.executionId,
    profile: settings.profile,
    sampling: {
      temperature: settings.temperature,
      topP: settings.topP,
      topK: settings.topK,
      seed: attempt.seed,
      maxTokens: settings.maxOutputTokens,
    },
    maxCalls: settings.maxCalls,
  }
}

/** Scores what is left behind, retrying the evaluation within its budget. */
async function scored(
  deps: ExecutionDeps,
  attempt: Attempt,
  outcome: ExecutionOutcome,
  overall: AbortSignal,
  stop: AbortSignal,
): Promise<Omit<ExecutionReport, 'modelCalls' | 'sampledTokens' | 'harnessErrors'>> {
  const signal = AbortSignal.any([overall, stop])
  let last: unknown
  for (let tries = 0; tries <= deps.settings.evaluationRetries; tries++) {
    try {
      const score = await deps.scorer.score(attempt.task, attempt.sandbox, join(attempt.folder, 'scorer'), signal)
      return { outcome, score, error: undefined }
    } catch (error) {
      last = error
      if (signal.aborted) break
    }
  }
  if (stop.aborted) return failed('interrupted', last, 'E_HARNESS_INTERRUPTED', 'harness')
  if (overall.aborted) return failed('overall-timeout', last, 'E_HARNESS_OVERALL_TIMEOUT', 'harness')
  return failed('evaluation-failed', last, 'E_SCORER_FAILED', 'scorer')
}

function neverCalled(deps: ExecutionDeps, end: ProcessEnd, attempt: Attempt): ReturnType<typeof failed> {
  const how =
    end.exitCode === undefined
      ? end.timedOut
        ? 'ran into its timeout'
        : `died of ${end.signal ?? 'a signal'}`
      : `exited with ${end.exitCode}`
  const crashed = end.exitCode !== 0
  const error = new GyreError(
    `harness ${deps.harness.name} ${how} without one model call: check that it reads its base URL and key, and see ${attempt.folder}`,
    { boundary: 'harness', code: crashed ? 'E_HARNESS_CRASHED' : 'E_HARNESS_NO_CALLS' },
  )
  return failed('harness-failed', error, 'E_HARNESS_NO_CALLS', 'harness')
}

function overallError(settings: ExecutionSettings): GyreError {
  return new GyreError(`the execution passed its overall timeout of ${settings.overallTimeoutMs} ms and was dropped`, {
    boundary: 'harness',
    code: 'E_HARNESS_OVERALL_TIMEOUT',
  })
}

function failed(
  outcome: ExecutionOutcome,
  cause: unknown,
  code: `E_${Uppercase<string>}`,
  boundary: GyreError['boundary'],
): ExecutionReport {
  const error = cause instanceof GyreError ? cause : new GyreError(errorText(cause), { boundary, code, cause })
  return { outcome, score: undefined, error, modelCalls: 0, sampledTokens: 0, harnessErrors: 0 }
}
