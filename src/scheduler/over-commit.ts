/**
 * @file More executions than slots while engines wait for tools (scheduler.md 5). Pure.
 *
 * A slot is room for the key-value blocks of one execution, which it keeps while its harness runs a tool. When many do,
 * engines are idle while executions wait in the queue. Then, and only then, destinations take more than they have slots
 * for, and give up the blocks of whoever waits longest. Role transfers know nothing of it: the water level and the
 * reservation of a move count slots.
 */
import { membersOf } from './tick.ts'
import type { DraftState } from './tick.ts'
import type { SchedulerConfig, SchedulerState } from './types.ts'

/** Weight of the newest report. */
const NEWEST = 0.3
/** Share of slots that generate, below which engines are idle, and above which they are busy. */
const IDLE_BELOW = 0.75
const BUSY_ABOVE = 0.9
/** Change of the factor at a time, and the reports it takes to see what a change did. */
const CHANGE = 0.125
const REPORTS_BETWEEN = 4

/**
 * Engines that are idle because nothing waits for them say nothing about how many executions keep them busy. A share
 * that is no number, or below 0, is no report.
 */
export function loadSeen(state: DraftState, share: number): void {
  if (!(share >= 0) || share === Number.POSITIVE_INFINITY) return
  const { load, config } = state
  if (share < BUSY_ABOVE && !isWaiting(state)) return
  load.busyShare = load.busyShare === undefined ? share : load.busyShare + NEWEST * (share - load.busyShare)
  load.reports = Math.min(REPORTS_BETWEEN, load.reports + 1)
  if (load.reports < REPORTS_BETWEEN) return
  if (load.busyShare > BUSY_ABOVE) setFactor(state, Math.max(1, load.factor - CHANGE))
  else if (load.busyShare < IDLE_BELOW) setFactor(state, Math.min(config.overCommit, load.factor + CHANGE))
}

function setFactor(state: DraftState, factor: number): void {
  if (factor === state.load.factor) return
  state.load.factor = factor
  state.load.reports = 0
}

function isWaiting(state: SchedulerState): boolean {
  return membersOf(state.groups).some((m) => m.phase === 'queued' || m.phase === 'held')
}

/** Executions that `slots` slots take now. */
export function effectiveSlots(slots: number, factor: number): number {
  return Math.floor(slots * factor + 1e-9)
}

/** The most executions that `slots` slots ever take. */
export function mostExecutions(slots: number, { overCommit }: Pick<SchedulerConfig, 'overCommit'>): number {
  return effectiveSlots(slots, overCommit)
}
