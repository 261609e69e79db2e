/** @file Which destination an execution gets (E2). Pure. */
import { effectiveSlots } from './over-commit.ts'
import type { DraftExecution, Tick } from './tick.ts'
import type { Destination, SchedulerConfig, SchedulerState } from './types.ts'

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

/** The same for every destination, in one look at the executions. */
function usage(state: SchedulerState): Readonly<Record<Destination['kind'], readonly number[]>> {
  const cell = state.cells.map(() => 0)
  const standalone = state.standalone.map(() => 0)
  for (const group of state.groups) {
    if (group.phase !== 'running') continue
    for (const { destination } of group.members) {
      if (destination === undefined) continue
      const used = destination.kind === 'cell' ? cell : standalone
      used[destination.index] = (used[destination.index] ?? 0) + 1
    }
  }
  return { cell, standalone }
}

/**
 * The destination for one more execution, or undefined when every slot is taken. Standalone engines come first:
 * they never leave. Among cells, later ones leave later. `except` is a cell that is about to leave.
 */
export function place(tick: Tick, except?: number): Destination | undefined {
  const { placement } = tick.state.config
  return (
    pick(tick, servingEngines(tick), placement) ??
    pick(tick, servingCells(tick, except), placement) ??
    (except === undefined ? overCommitted(tick) : undefined)
  )
}

/** Beyond the slots, the least loaded first. Never for a move: a cell leaves only when slots hold everything. */
function overCommitted(tick: Tick): Destination | undefined {
  const { factor } = tick.state.load
  if (factor <= 1) return undefined
  const candidates = [...servingEngines(tick), ...servingCells(tick, undefined)]
  const widened = candidates.map((c) => ({ ...c, slots: effectiveSlots(c.slots, factor) }))
  return pick(tick, widened, 'balanced')
}

interface Candidate {
  readonly kind: 'cell' | 'standalone'
  readonly index: number
  readonly slots: number
}

function servingEngines({ state, guards }: Tick): Candidate[] {
  return state.standalone.flatMap((engine, index) => {
    const slots = state.config.standaloneSlots[index]
    return slots !== undefined && guards.engineServes(engine) ? [{ kind: 'standalone', index, slots }] : []
  })
}

function servingCells({ state, guards }: Tick, except: number | undefined): Candidate[] {
  const slots = state.config.cellSlots
  return state.cells
    .map((_, index) => ({ kind: 'cell' as const, index, slots }))
    .filter(({ index }) => index !== except && guards.mayServe(state, index))
    .toReversed()
}

/** @param candidates in order of preference. */
function pick(
  { state, guards }: Tick,
  candidates: readonly Candidate[],
  placement: SchedulerConfig['placement'],
): Destination | undefined {
  const used = usage(state)
  const open = candidates
    .map(({ kind, index, slots }) => ({ kind, index, slots, used: used[kind][index] ?? 0 }))
    .filter((c) => guards.hasRoom(c.used, c.slots))
    .map((c) => ({ kind: c.kind, index: c.index, load: c.used / c.slots }))
  const first = open[0]
  if (first === undefined) return undefined
  const chosen = placement === 'latest' ? first : open.reduce((best, c) => (c.load < best.load ? c : best), first)
  return { kind: chosen.kind, index: chosen.index }
}

/** Gives `member` a slot of `destination`, or none; its route changes with it. */
export function reroute(tick: Tick, member: DraftExecution, destination: Destination | undefined): void {
  member.destination = destination
  member.routeEpoch = tick.guards.nextRouteEpoch(member.routeEpoch)
}
