/** @file Keeps evaluation executions in the store beside the trained ones, so that their trees can be looked at. */
import { type ExecutionId, groupId, queryId } from '../core/ids.ts'
import { hashSeed } from '../core/rng.ts'
import { errorText } from '../core/errors.ts'
import type { Clock } from '../core/clock.ts'
import type { ExecutionRow, Store } from '../ports/store.ts'
import type { Task } from '../ports/task.ts'
import { RunCounters } from './counters.ts'
import type { EvaluationPlan } from './evaluate.ts'
import type { ExecutionReport } from './execution.ts'
import { queuedRow } from './ledger.ts'
import { markInterrupted } from './resume.ts'

export interface EvaluationBooks {
  readonly executions: EvaluationPlan['executions']
  readonly onStarted: (executionId: ExecutionId) => void
  readonly onDone: (executionId: ExecutionId, task: Task, report: ExecutionReport) => void
}

/** Opens one group per task, named `before-NAME` or `after-NAME`; an evaluation that was cut short starts over. */
export function openEvaluationBooks(
  store: Store,
  clock: Clock,
  request: { readonly label: string; readonly tasks: readonly Task[]; readonly perTask: number; readonly seed: number },
): EvaluationBooks {
  const attempt = Number(store.getMeta(`evaluation-${request.label}`) ?? '0')
  store.setMeta(`evaluation-${request.label}`, String(attempt + 1))
  const rows = new Map<ExecutionId, ExecutionRow>()
  const executions = request.tasks.flatMap((task) => {
    const id = groupId(`${request.label}-${task.name}`)
    for (const row of store.executions(id)) {
      if (row.state !== 'scored' && row.state !== 'excluded') markInterrupted(store, row)
    }
    const members = Array.from({ length: request.perTask }, (_, member) => queuedRow(id, member, attempt))
    store.putGroup(
      {
        groupId: id,
        queryId: queryId(task.name),
        taskName: task.name,
        dispatchVersion: store.latestCheckpoint()?.policyVersion ?? 0,
        burst: 0,
        state: 'evaluation',
        consumedStep: undefined,
      },
      members,
    )
    for (const row of members) rows.set(row.executionId, row)
    return members.map((row) => ({
      executionId: row.executionId,
      task,
      seed: hashSeed('evaluation', request.seed, task.name, row.member),
    }))
  })
  const update = (executionId: ExecutionId, change: Partial<ExecutionRow>): void => {
    const row = rows.get(executionId)
    if (row === undefined) return
    const next = { ...row, ...change }
    rows.set(executionId, next)
    store.putExecution(next)
  }
  return {
    executions,
    onStarted: (id) => update(id, { state: 'running', startedAtMs: clock.now() }),
    onDone: (id, _task, report) => {
      new RunCounters(store).add({ model_calls: report.modelCalls, harness_errors: report.harnessErrors })
      update(id, {
        state: report.score === undefined ? 'excluded' : 'scored',
        outcome: report.outcome,
        reward: report.score?.reward,
        parts: report.score?.parts ?? {},
        errorCode: report.error?.code,
        errorMessage: report.error === undefined ? undefined : errorText(report.error),
        endedAtMs: clock.now(),
      })
    },
  }
}
