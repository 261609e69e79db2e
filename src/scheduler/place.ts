/** @file Which destination an execution gets (E2). Pure. */
import type { Draft } from './tick.ts'
import type { Destination, SchedulerState } from './types.ts'
import { servesRollout } from './waterlevel.ts'

export function sameDestination(a: Destination | undefined, b: Destination | undefined): boolean {
  return a?.kind === b?.kind && a?.index === b?.index
}

/** Executions that own a slot of `destination`. */
export function slotsUsed(state: SchedulerState, destination: Destination): number {
  let used = 0
  for (const group of state.groups) {
    for (const member of group.members) if (sameDestination(member.destination, destination)) used++
  }
  return used
}

/**
 * The destination for one more execution, or undefined when every slot is taken. Standalone engines come first:
 * they never leave. Among cells, later ones leave later. `except` is a cell that is about to leave.
 */
export function place(state: SchedulerState, except?: number): Destination | undefined {
  const { config } = state
  const standalone = config.standaloneSlots.map((slots, index) => ({ kind: 'standalone' as const, index, slots }))
  return pick(state, standalone) ?? pick(state, servingCells(state, except))
}

interface Candidate {
  readonly kind: 'cell' | 'standalone'
  readonly index: number
  readonly slots: number
}

function servingCells(state: SchedulerState, except: number | undefined): Candidate[] {
  const slots = state.config.cellSlots
  return state.cells
    .map((_, index) => ({ kind: 'cell' as const, index, slots }))
    .filter(({ index }) => index !== except && servesRollout(state, index))
    .toReversed()
}

/** @param candidates in order of preference. */
function pick(state: SchedulerState, candidates: readonly Candidate[]): Destination | undefined {
  const open = candidates
    .map((c) => ({ kind: c.kind, index: c.index, load: slotsUsed(state, c) / c.slots }))
    .filter((c) => c.load < 1)
  const first = open[0]
  if (first === undefined) return undefined
  const chosen =
    state.config.placement === 'latest' ? first : open.reduce((best, c) => (c.load < best.load ? c : best), first)
  return { kind: chosen.kind, index: chosen.index }
}

/** Gives `member` a slot of `destination`, or none; its route changes with it. */
export function reroute(
  member: Draft<SchedulerState>['groups'][number]['members'][number],
  destination: Destination | undefined,
): void {
  member.destination = destination
  member.routeEpoch++
}
