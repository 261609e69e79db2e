/**
 * @file The scheduler: `advance(state, event)` gives the next state and the commands to carry out.
 *
 * An event is applied, then the rules run until none has anything more to do. Deterministic; no clock, no I/O.
 */
import type { ExecutionId } from '../core/ids.ts'
import { checkpointed, cutBurst, endBurst, optimized, publish } from './burst.ts'
import { groupsCreated, openBurst, replaceLost } from './dispatch.ts'
import { admit, attemptCreated, executionEnded, executionFailed, executionResolved } from './executions.ts'
import {
  cellRestarted,
  cellRestored,
  checkpointFailed,
  failCell,
  joinFailed,
  reduceFailed,
  restartCell,
  restore,
} from './failures.ts'
import { mayAssign } from './staleness.ts'
import { assign, claim, closeStep, join, joined, microStepDone, microStepsBuilt, reduced } from './steps.ts'
import { currentCell, draftOf, failRun } from './tick.ts'
import type { DraftCell, Guards, Tick } from './tick.ts'
import { cancelled, checkWaterLevel, enteredTraining } from './transfer.ts'
import type { Advanced, Command, SchedulerEvent, SchedulerState } from './types.ts'
import { waterLevelAllows } from './waterlevel.ts'

const GUARDS: Guards = { waterLevelAllows, mayAssign }

/**
 * One event. The given state is not changed.
 * @param atMs when it happened, by the clock of whoever drives the scheduler, which reads none itself. [ms] A time
 * before that of the last event counts as that.
 */
export function advance(state: SchedulerState, event: SchedulerEvent, atMs: number): Advanced {
  return advanceWith(GUARDS, state, event, atMs)
}

/** `advance` with other safety rules: what a test uses to show that the invariants notice. */
export function advanceWith(guards: Guards, state: SchedulerState, event: SchedulerEvent, atMs: number): Advanced {
  if (state.phase === 'done' || state.phase === 'failed') return { state, commands: [] }
  const commands: Command[] = []
  const tick: Tick = { state: { ...draftOf(state), nowMs: Math.max(state.nowMs, atMs) }, commands, guards }
  apply(tick, event)
  settle(tick)
  return { state: tick.state, commands }
}

type CellEvent = Extract<SchedulerEvent, { readonly cell: number }>
type ExecutionEvent = Extract<SchedulerEvent, { readonly executionId: ExecutionId }>
type CoreEvent = Extract<SchedulerEvent, { readonly kind: 'reduced' | 'reduce-failed' | 'optimized' }>

function apply(tick: Tick, event: SchedulerEvent): void {
  if ('cell' in event) {
    const cell = currentCell(tick.state, event)
    if (cell !== undefined) applyToCell(tick, cell, event)
    return
  }
  if ('executionId' in event) {
    applyToExecution(tick, event)
    return
  }
  switch (event.kind) {
    case 'start':
      if (tick.state.phase === 'idle' && !tick.state.stopping) start(tick)
      return
    case 'stop':
      tick.state.stopping = true
      return
    case 'fatal':
      failRun(tick, event.reason)
      return
    case 'groups-created':
      groupsCreated(tick, event.groups)
      return
    case 'cancelled':
      cancelled(tick, event.transferId)
      return
    case 'micro-steps-built':
      microStepsBuilt(tick, event)
      return
    case 'tick':
    case 'handed-over':
    case 'standalone-published':
    case 'standalone-failed':
    case 'standalone-recovered':
    case 'load-seen':
      return
    case 'checkpointed':
      checkpointed(tick, event.step)
      return
    case 'checkpoint-failed':
      checkpointFailed(tick, event.step)
      return
    case 'reduced':
    case 'reduce-failed':
    case 'optimized':
      if (tick.state.cells[0]?.epoch === event.epoch) applyToCore(tick, event)
      return
    default:
      event satisfies never
  }
}

function start(tick: Tick): void {
  const { state } = tick
  if (state.step < state.config.totalSteps) openBurst(tick)
  else state.phase = 'publishing'
}

function applyToExecution(tick: Tick, event: ExecutionEvent): void {
  switch (event.kind) {
    case 'execution-ended':
      executionEnded(tick, event.executionId)
      return
    case 'execution-scored':
      executionResolved(tick, event.executionId, 'scored')
      return
    case 'execution-excluded':
      executionResolved(tick, event.executionId, 'excluded')
      return
    case 'execution-failed':
      executionFailed(tick, event.executionId)
      return
    case 'attempt-created':
      attemptCreated(tick, event.executionId, event.nextId)
      return
    default:
      event satisfies never
  }
}

function applyToCore(tick: Tick, event: CoreEvent): void {
  if (event.kind === 'reduced') reduced(tick)
  else if (event.kind === 'reduce-failed') reduceFailed(tick)
  else optimized(tick)
}

function applyToCell(tick: Tick, cell: DraftCell, event: CellEvent): void {
  switch (event.kind) {
    case 'entered-training':
      enteredTraining(tick, event.cell, cell)
      return
    case 'joined':
      joined(tick, cell, event.step)
      return
    case 'join-failed':
      joinFailed(tick, event.cell, cell, event.step)
      return
    case 'micro-step-done':
      microStepDone(cell, event.key)
      return
    case 'published':
      published(cell, event.version)
      return
    case 'cell-failed':
      failCell(tick, event.cell, cell)
      return
    case 'cell-restarted':
      cellRestarted(cell)
      return
    case 'restart-failed':
      restartCell(tick, event.cell, cell)
      return
    case 'cell-restored':
      cellRestored(tick, event.cell, cell, event.version)
      return
    default:
      event satisfies never
  }
}

function published(cell: DraftCell, version: number): void {
  if (!cell.publishing) return
  cell.publishing = false
  cell.policyVersion = version
  if (cell.phase === 'returning') cell.phase = 'rollout'
}

const ALWAYS = [restore, admit]
/** Claims come before the water level: a satellite moves for what the present members leave. */
const RUNNING = [...ALWAYS, assign, replaceLost, cutBurst, join, claim, closeStep, checkWaterLevel]
const PUBLISHING = [...ALWAYS, publish, endBurst]

function settle(tick: Tick): void {
  let isMoving = true
  // Every rule that returns true has used something up, so the loop ends.
  while (isMoving) isMoving = rulesOf(tick.state).some((rule) => rule(tick))
}

function rulesOf({ phase, stopping }: SchedulerState): readonly ((tick: Tick) => boolean)[] {
  if (stopping || phase === 'idle' || phase === 'done' || phase === 'failed') return []
  if (phase === 'checkpointing') return ALWAYS
  return phase === 'running' ? RUNNING : PUBLISHING
}
