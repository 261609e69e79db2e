/** @file What a resumed run starts from: the last checkpoint, and every group that no checkpoint has consumed. */
import type { ExecutionRow, GroupRow, Store } from '../ports/store.ts'
import type { ResumedGroup, ResumePoint } from '../scheduler/state.ts'
import { presentAttempts, queuedRow } from './ledger.ts'

/**
 * Executions that were running when the run was killed are marked interrupted and get a new attempt; what
 * was scored is kept. Nothing that a checkpoint holds comes back, so nothing is trained twice.
 */
export function resumePoint(store: Store): ResumePoint {
  const training = store.groups().filter((group) => group.state !== 'evaluation')
  const open = training.filter((group) => group.state === 'dispatched' || group.state === 'ready')
  return {
    step: store.latestCheckpoint()?.step ?? 0,
    bursts: training.reduce((most, group) => Math.max(most, group.burst + 1), 0),
    groups: open.map((group) => resumedGroup(store, group)),
  }
}

function resumedGroup(store: Store, group: GroupRow): ResumedGroup {
  const members = presentAttempts(store.executions(group.groupId)).map((row) => {
    const present = wasCutShort(row) ? nextAttempt(store, row) : row
    const { executionId, attempt, state } = present
    const phase = state === 'scored' || state === 'excluded' ? state : 'queued'
    return { executionId, attempt, phase } as const
  })
  return { groupId: group.groupId, dispatchVersion: group.dispatchVersion, members }
}

/** By a kill, which leaves it as it was, or by an orderly end, which marks it. */
function wasCutShort({ state, outcome }: ExecutionRow): boolean {
  return state === 'running' || state === 'evaluating' || outcome === 'interrupted'
}

function nextAttempt(store: Store, row: ExecutionRow): ExecutionRow {
  markInterrupted(store, row)
  const next = queuedRow(row.groupId, row.member, row.attempt + 1)
  store.putExecution(next)
  return next
}

/** A record of what was begun and never ended; its member is run again. */
export function markInterrupted(store: Store, row: ExecutionRow): void {
  store.putExecution({ ...row, state: 'excluded', outcome: 'interrupted', errorCode: 'E_HARNESS_INTERRUPTED' })
}
