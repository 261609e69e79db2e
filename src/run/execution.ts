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

export interface ExecutionOrder {
  readonly executionId: ExecutionId
  readonly task: Task
  /** Of what the policy samples: the same for every attempt of one member. */
  readonly seed: number
  /** The harness has ended, its slot is free, and its work goes to the scorer. Not called for a failure. */
  readonly onTerminated?: () => void | Promise<void>
  /** The run ends: nothing is scored. */
  readonly stop: AbortSignal
  /** Ends the harness as its timeout would; what it left behind is scored. Ignored once it has ended. */
  readonly cut?: AbortSignal
}

/** Runs one attempt to its end. Never throws: what went wrong is in the report. */
export async function runExecution(deps: ExecutionDeps, order: ExecutionOrder): Promise<ExecutionReport> {
  const { executionId, task } = order
  const overall = AbortSignal.timeout(deps.settings.overallTimeoutMs)
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
    const attempt = { ...order, sandbox, folder, overall }
    const report = await runInSandbox(deps, attempt)
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

interface Attempt extends ExecutionOrder {
  readonly sandbox: SandboxInstance
  readonly folder: string
  /** Launch to score took too long. */
  readonly overall: AbortSignal
}

async function runInSandbox(deps: ExecutionDeps, attempt: Attempt): Promise<ExecutionReport> {
  const { settings } = deps
  const { stop, cut, overall } = attempt
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
      AbortSignal.any([stop, overall, ...(cut === undefined ? [] : [cut])]),
    )
  } catch (error) {
    launchError = error
  }
  // One that comes from here on finds nothing left to cut.
  const wasCut = cut?.aborted === true
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
  if (calls.modelCalls === 0) {
    return {
      ...(wasCut ? failed('cut', cutError(), 'E_HARNESS_CUT', 'harness') : neverCalled(deps, end, attempt)),
      ...counts,
    }
  }
  await attempt.onTerminated?.()
  return { ...(await scored(deps, attempt, wasCut ? 'cut' : outcomeOf(end))), ...counts }
}

function outcomeOf(end: ProcessEnd): ExecutionOutcome {
  if (end.timedOut) return 'harness-timeout'
  return end.exitCode === 0 ? 'finished' : 'harness-failed'
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
): Promise<Omit<ExecutionReport, 'modelCalls' | 'sampledTokens' | 'harnessErrors'>> {
  const { overall, stop } = attempt
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

function cutError(): GyreError {
  return new GyreError('the execution was cut before its first model call, so there is nothing to score', {
    boundary: 'harness',
    code: 'E_HARNESS_CUT',
  })
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
