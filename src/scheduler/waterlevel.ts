/** @file The one rule that decides when a cell may leave rollout: w <= C_R - Ce. Pure. */
import type { SchedulerState } from './types.ts'

/** w(t) = d(t) - f(t). [executions] Rises only with a dispatch. */
export function waterLevel(state: Pick<SchedulerState, 'dispatched' | 'terminated'>): number {
  return state.dispatched - state.terminated
}

/** True when cell `index` may serve executions now: it is in rollout, and the policy does not keep it for training. */
export function servesRollout(state: Pick<SchedulerState, 'cells' | 'config'>, index: number): boolean {
  if (state.config.policy === 'async' && index < state.config.trainingCells) return false
  return state.cells[index]?.phase === 'rollout'
}

/** C_R(t) = Cs + Ce x cells in rollout. [executions] */
export function rolloutCapacity(state: Pick<SchedulerState, 'cells' | 'config' | 'standalone'>): number {
  const serving = state.cells.filter((_, index) => servesRollout(state, index)).length
  return standaloneCapacity(state) + serving * state.config.cellSlots
}

/** Cs: slots of the standalone engines that serve now. [executions] */
export function standaloneCapacity(state: Pick<SchedulerState, 'config' | 'standalone'>): number {
  return state.config.standaloneSlots.reduce(
    (sum, slots, index) => (state.standalone[index]?.phase === 'serving' ? sum + slots : sum),
    0,
  )
}

/** The water level guard: what stays in rollout can hold everything unfinished. */
export function waterLevelAllows(level: number, capacity: number, cellSlots: number): boolean {
  return level <= capacity - cellSlots
}
