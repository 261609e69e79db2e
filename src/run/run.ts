/**
 * @file A whole run on one page: cold start, evaluation, the elastic loop, evaluation, summary.
 *
 * Every phase leaves a durable mark, so a resumed run skips what is done and repeats only what was lost.
 */
import type { Clock } from '../core/clock.ts'
import { GyreError } from '../core/errors.ts'
import type { StepRow, Store } from '../ports/store.ts'
import type { SchedulerState } from '../scheduler/types.ts'
import type { Controller, ControllerEvent, RunSummary as TrainingSummary } from './controller-types.ts'
import type { EvaluationResult } from './evaluate.ts'
import { RunCounters } from './counters.ts'
import { type ParkedTask, parkedTasks } from './parked-tasks.ts'
import { RunTotals, type Traffic } from './totals.ts'
import { resumePoint } from './resume.ts'
import type { ResumePoint } from '../scheduler/state.ts'

/** What a run is made of; `src/cli/compose` builds it. */
export interface RunParts {
  readonly store: Store
  readonly clock: Clock
  readonly seed: number
  readonly policy: string
  /** Trains the first weights and saves them as the checkpoint of step 0. */
  readonly coldStart: () => Promise<void>
  /** Brings every cell into rollout with the weights of the last checkpoint. */
  readonly loadCells: () => Promise<void>
  readonly evaluate: (label: 'before' | 'after') => Promise<EvaluationResult>
  readonly schedule: (point: ResumePoint) => SchedulerState
  readonly controller: (initial: SchedulerState, onEvent: (event: ControllerEvent) => void) => Controller
  /** Counts of the gateway. */
  readonly traffic: () => Traffic
  /** Called with each phase as it begins. */
  readonly onPhase: (phase: string) => void
}

/** What a run achieved; written to summary.json. */
export interface RunResult {
  readonly outcome: 'done' | 'failed' | 'stopped'
  readonly reason: string
  readonly heldOutRewardBefore: number
  readonly heldOutRewardAfter: number
  /** Wall clock over all attempts of the run. [minutes] */
  readonly minutes: number
  /** Of it in the elastic loop: dispatch to last publication. [minutes] */
  readonly trainingMinutes: number
  readonly trainingSteps: number
  readonly executions: number
  readonly modelCalls: number
  readonly roleTransfers: number
  readonly liveRoleTransfers: number
  readonly requestsMoved: number
  /** Cached context that moved with its executions instead of being computed again. [tokens] */
  readonly tokensHandedOver: number
  /** Ended early, so that their groups could go on, and scored. */
  readonly executionsCut: number
  /** Mean and largest over all groups trained on; NaN before the first step. [steps] */
  readonly stalenessMean: number
  readonly stalenessMax: number
  readonly harnessErrors: number
  readonly tokensMismatched: number
  /** Deaths and hangs of cells that the run went on from. */
  readonly cellRestarts: number
  /** Times a standalone engine failed and was waited for. */
  readonly standaloneFailures: number
  /** Tasks that were not dealt any more after their groups were lost in a row. */
  readonly parkedTasks: readonly ParkedTask[]
  readonly seed: number
  readonly policy: string
  readonly cells: TrainingSummary['cells']
}

export async function run(parts: RunParts): Promise<RunResult> {
  const { store, clock } = parts
  const counters = new RunCounters(store)
  const totals = new RunTotals(store, clock, parts.traffic)
  if (store.latestCheckpoint() === undefined) {
    parts.onPhase('cold start')
    await parts.coldStart()
    totals.save()
  }
  await parts.loadCells()
  const before = await evaluation(parts, counters, 'before')
  totals.save()
  parts.onPhase('training')
  const schedule = parts.schedule(resumePoint(store))
  const training = await parts.controller(schedule, (event) => totals.see(event)).run()
  counters.add({ training_ms: training.durationMs })
  let after = Number.NaN
  if (training.outcome === 'done') {
    await parts.loadCells()
    after = await evaluation(parts, counters, 'after')
  }
  totals.save()
  return summarize(parts, counters, training, { before, after })
}

/** The reward on held-out tasks, measured once per run and remembered. */
async function evaluation(parts: RunParts, counters: RunCounters, label: 'before' | 'after'): Promise<number> {
  // A run that is trained on after its end is measured again at its new end.
  const key = label === 'before' ? 'held-out-before' : `held-out-after-${parts.store.latestCheckpoint()?.step ?? 0}`
  const held = parts.store.getMeta(key)
  if (held !== undefined) return Number(held)
  parts.onPhase(`evaluation ${label} training`)
  const result = await parts.evaluate(label)
  if (result.scored === 0) throw nothingScored(result)
  parts.store.setMeta(key, String(result.reward))
  counters.add({ evaluation_executions: result.scored + result.excluded })
  return result.reward
}

/** A harness that made no call at all is its own explanation. */
export function nothingScored({ modelCalls, excluded, firstError }: EvaluationResult): GyreError {
  if (modelCalls === 0 && firstError !== undefined) return firstError
  return new GyreError(`none of the ${excluded} held-out executions could be scored: see executions/`, {
    boundary: 'scorer',
    code: 'E_SCORER_NOTHING_SCORED',
    cause: firstError,
  })
}

function summarize(
  parts: RunParts,
  counters: RunCounters,
  training: TrainingSummary,
  reward: { readonly before: number; readonly after: number },
): RunResult {
  const rows = parts.store.executions().filter((row) => row.state === 'scored' || row.state === 'excluded')
  return {
    outcome: training.outcome,
    reason: training.reason,
    heldOutRewardBefore: reward.before,
    heldOutRewardAfter: reward.after,
    minutes: counters.value('elapsed_ms') / 60_000,
    trainingMinutes: counters.value('training_ms') / 60_000,
    trainingSteps: parts.store.latestCheckpoint()?.step ?? 0,
    executions: rows.length,
    modelCalls: counters.value('model_calls'),
    roleTransfers: counters.value('role_transfers'),
    liveRoleTransfers: counters.value('live_role_transfers'),
    requestsMoved: counters.value('requests_moved'),
    tokensHandedOver: counters.value('tokens_handed_over'),
    executionsCut: counters.value('executions_cut'),
    ...stalenessOf(parts.store.steps()),
    harnessErrors: counters.value('harness_errors'),
    tokensMismatched: counters.value('tokens_mismatched'),
    cellRestarts: counters.value('cell_restarts'),
    standaloneFailures: counters.value('standalone_failures'),
    parkedTasks: parkedTasks(parts.store),
    seed: parts.seed,
    policy: parts.policy,
    cells: training.cells,
  }
}

/** Every step trains as many groups, so the mean over steps is that over groups. */
function stalenessOf(steps: readonly StepRow[]): Pick<RunResult, 'stalenessMean' | 'stalenessMax'> {
  if (steps.length === 0) return { stalenessMean: Number.NaN, stalenessMax: Number.NaN }
  const total = steps.reduce((sum, { metrics }) => sum + (metrics['staleness_mean'] ?? 0), 0)
  return {
    stalenessMean: total / steps.length,
    stalenessMax: Math.max(...steps.map(({ metrics }) => metrics['staleness_max'] ?? 0)),
  }
}
