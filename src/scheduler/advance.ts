/**
 * @file The scheduler: `advance(state, event)` gives the next state and the commands to carry out.
 *
 * An event is applied, then the rules run until none has anything more to do. Deterministic; no clock, no I/O.
 */
import type { ExecutionId } from '../core/ids.ts'
import { accountTime } from './carry-over.ts'
import { checkpointed, cutBurst, endBurst, optimized, publish } from './burst.ts'
import { beginEarly, gradientHeld, gradientRefused } from './early.ts'
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
import { GUARDS } from './guards.ts'
import type { Guards } from './guards.ts'
import { loadSeen } from './over-commit.ts'
import {
  currentEngine,
  publishStandalone,
  standaloneFailed,
  standalonePublished,
  standaloneRecovered,
} from './standalone.ts'
import { cutStragglers, woken } from './straggler.ts'
import { assign, claim, closeStep, join, joined, microStepDone, microStepsBuilt, reduced } from './steps.ts'
import { currentCell, draftOf, failRun } from './tick.ts'
import type { DraftCell, Tick } from './tick.ts'
import { cancelled, checkWaterLevel, enteredTraining, handedOver, rollBack } from './transfer.ts'
import type { Advanced, Command, SchedulerEvent } from './messages.ts'
import type { SchedulerState } from './types.ts'

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
  const tick: Tick = {
    state: { ...draftOf(state), nowMs: guards.timeOf(state.nowMs, atMs) },
    commands,
    guards,
    written: new Set(),
  }
  accountTime(tick.state, state.nowMs)
  apply(tick, event)
  settle(tick)
  return { state: tick.state, commands }
}

type CellEvent = Extract<SchedulerEvent, { readonly cell: number }>
type ExecutionEvent = Extract<SchedulerEvent, { readonly executionId: ExecutionId }>
type EngineEvent = Extract<SchedulerEvent, { readonly engine: number }>
type CoreEvent = Extract<SchedulerEvent, { readonly kind: 'reduced' | 'reduce-failed' | 'optimized' }>

function apply(tick: Tick, event: SchedulerEvent): void {
  if ('cell' in event) {
    const cell = currentCell(tick, event)
    if (cell !== undefined) applyToCell(tick, cell, event)
    return
  }
  if ('engine' in event) {
    applyToEngine(tick, event)
    return
  }
  if ('executionId' in event) {
    applyToExecution(tick, event)
    return
  }
  switch (event.kind) {
    case 'start':
      if (tick.guards.isIdle(tick.state) && tick.guards.mayBegin(tick.state)) start(tick)
      return
    case 'stop':
      tick.state.stopping = true
      rollBack(tick)
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
    case 'handed-over':
      handedOver(tick, event.transferId)
      return
    case 'tick':
      woken(tick.state)
      return
    case 'load-seen':
      loadSeen(tick.state, event.share)
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
      applyToCore(tick, event)
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

function applyToEngine(tick: Tick, event: EngineEvent): void {
  const slot = currentEngine(tick, event)
  if (slot === undefined) return
  if (event.kind === 'standalone-failed') standaloneFailed(tick, event.engine, slot)
  else if (event.kind === 'standalone-published') standalonePublished(tick, slot, event.version)
  else standaloneRecovered(tick, event.engine, slot, event.version)
}

function applyToCore(tick: Tick, event: CoreEvent): void {
  const core = tick.state.cells[0]
  if (core === undefined || !tick.guards.isOfCore(core, event.epoch)) return
  if (!tick.guards.isOfOpenStep(tick.state, event.step)) return
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
      microStepDone(tick, cell, event.key)
      return
    case 'gradient-held':
      gradientHeld(tick, cell, event.key)
      return
    case 'gradient-refused':
      gradientRefused(tick, cell, event.key)
      return
    case 'published':
      published(tick, cell, event.version)
      return
    case 'cell-failed':
      failCell(tick, event.cell, cell)
      return
    case 'cell-restarted':
      cellRestarted(cell)
      return
    case 'restart-failed':
      // Said twice, it counts once.
      cell.epoch++
      restartCell(tick, event.cell, cell)
      return
    case 'cell-restored':
      cellRestored(tick, event.cell, cell, event.version)
      return
    default:
      event satisfies never
  }
}

function published(tick: Tick, cell: DraftCell, version: number): void {
  // A second answer to an earlier publication says nothing about this one.
  if (!cell.publishing || !tick.guards.isOfVersion(tick.state.policyVersion, version)) return
  cell.publishing = false
  cell.policyVersion = version
  if (cell.phase === 'returning') cell.phase = 'rollout'
}

/** A move is undone only for executions that `admit` found no place for. */
const ALWAYS = [restore, admit, rollBack, cutStragglers]
/**
 * Nobody joins a step that is complete, and claims come before the water level: a satellite moves for what the present
 * members leave. What nobody waits for comes last.
 */
const RUNNING = [...ALWAYS, assign, replaceLost, cutBurst, closeStep, join, claim, checkWaterLevel, beginEarly]
const PUBLISHING = [...ALWAYS, publish, publishStandalone, endBurst]

function settle(tick: Tick): void {
  let isMoving = true
  // Every rule that returns true has used something up, so the loop ends.
  while (isMoving) isMoving = rulesOf(tick).some((rule) => rule(tick))
}

function rulesOf({ state, guards }: Tick): readonly ((tick: Tick) => boolean)[] {
  const { phase } = state
  if (!guards.mayBegin(state) || phase === 'idle' || phase === 'done' || phase === 'failed') return []
  if (phase === 'checkpointing') return ALWAYS
  return phase === 'running' ? RUNNING : PUBLISHING
}
