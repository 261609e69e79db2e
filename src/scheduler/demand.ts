/** @file Whether one more satellite would find something to train. Pure. */
import type { SchedulerState } from './types.ts'

/**
 * True when more waits than the members that are there, or on their way into the step, will claim. A group counts as
 * one micro-step until it is cut, and ready groups only as far as this burst may still take them.
 *
 * How long the open step still needs is not looked at: the satellite stays for every later step of the burst, so what
 * a move costs too late in one step it earns in the next ones.
 */
export function hasBacklog(state: SchedulerState): boolean {
  const { openStep, cells, config, burst } = state
  if (openStep === undefined) return false
  const building = openStep.groups.filter((g) => g.microSteps === undefined).length
  const ready = state.groups.filter((g) => g.phase === 'ready').length
  const takes = Math.max(0, burst.stepsLeft * config.groupsPerStep - openStep.groups.length)
  const free = cells.filter(
    ({ phase, claim }, index) =>
      claim === undefined && (phase === 'training' || (phase === 'entering' && index < state.prefix)),
  ).length
  return openStep.queue.length + building + Math.min(ready, takes) > free
}
