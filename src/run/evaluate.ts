/** @file Runs tasks through the harness on cells that are all in rollout, and averages the reward. */
import type { GyreError } from '../core/errors.ts'
import type { EngineId, ExecutionId } from '../core/ids.ts'
import type { Task } from '../ports/task.ts'
import { type ExecutionDeps, type ExecutionReport, runExecution } from './execution.ts'

export interface EvaluationPlan {
  readonly executions: readonly { readonly executionId: ExecutionId; readonly task: Task; readonly seed: number }[]
  /** Destinations with the executions each serves at once. */
  readonly destinations: readonly { readonly engineId: EngineId; readonly slots: number }[]
  readonly onStarted?: (executionId: ExecutionId) => void
  readonly onDone?: (executionId: ExecutionId, task: Task, report: ExecutionReport) => void
}

export interface EvaluationResult {
  /** Mean over scored executions; NaN when none was scored. */
  readonly reward: number
  readonly scored: number
  /** Executions without a score: they are not in the mean. */
  readonly excluded: number
  readonly modelCalls: number
  readonly harnessErrors: number
  /** Why the first of the excluded ones has no score. */
  readonly firstError: GyreError | undefined
}

/** Every execution is routed to the destination with the most free slots when its turn comes. */
export async function evaluate(
  deps: ExecutionDeps,
  plan: EvaluationPlan,
  stop: AbortSignal,
): Promise<EvaluationResult> {
  const free = plan.destinations.map((d) => d.slots)
  const pending = [...plan.executions]
  const reports: ExecutionReport[] = []
  const runOne = async (): Promise<void> => {
    for (let next = pending.shift(); next !== undefined; next = pending.shift()) {
      if (stop.aborted) return
      const { executionId, task, seed } = next
      const slot = free.indexOf(Math.max(...free))
      free[slot] = (free[slot] ?? 0) - 1
      deps.forwarding.setRoutes([{ executionId, engineId: plan.destinations[slot]?.engineId, routeEpoch: 0 }])
      plan.onStarted?.(executionId)
      const report = await runExecution(deps, { executionId, task, seed, stop })
      free[slot] = (free[slot] ?? 0) + 1
      reports.push(report)
      plan.onDone?.(executionId, task, report)
    }
  }
  const width = plan.destinations.reduce((sum, d) => sum + d.slots, 0)
  await Promise.all(Array.from({ length: Math.min(width, pending.length) }, runOne))
  const rewards = reports.flatMap((r) => (r.score === undefined ? [] : [r.score.reward]))
  return {
    reward: rewards.reduce((a, b) => a + b, 0) / rewards.length,
    scored: rewards.length,
    excluded: reports.length - rewards.length,
    modelCalls: reports.reduce((sum, r) => sum + r.modelCalls, 0),
    harnessErrors: reports.reduce((sum, r) => sum + r.harnessErrors, 0),
    firstError: reports.find((r) => r.error !== undefined)?.error,
  }
}
