/** @file Executions that change their destination, and the routes that tell the forwarding point. */
import { place, reroute, sameDestination } from './place.ts'
import { hold } from './straggler.ts'
import { writable } from './tick.ts'
import type { DraftExecution, Tick } from './tick.ts'
import type { Destination } from './types.ts'

/** Of those that run: a new attempt gets its route when it exists. */
export function pushRoutes(tick: Tick, members: readonly DraftExecution[]): void {
  const routes = members
    .filter((m) => m.phase !== 'retrying')
    .map((m) => ({ executionId: m.executionId, destination: m.destination, routeEpoch: m.routeEpoch }))
  if (routes.length > 0) tick.commands.push({ kind: 'set-routes', routes })
}

function ownersOf(tick: Tick, destination: Destination): DraftExecution[] {
  const owners: DraftExecution[] = []
  for (const group of tick.state.groups) {
    for (const member of group.members) {
      if (sameDestination(member.destination, destination)) owners.push(writable(tick, group, member))
    }
  }
  return owners
}

/** E13, rollout: executions of a destination that is gone go where there is room; the rest are held. */
export function rehome(tick: Tick, gone: Destination): void {
  const lost = ownersOf(tick, gone)
  for (const member of lost) member.destination = undefined
  for (const member of lost) {
    reroute(tick, member, place(tick))
    if (member.destination === undefined && member.phase === 'running') hold(tick.state, member)
  }
  pushRoutes(tick, lost)
}

/**
 * R2T, reservation and routes. All or nothing: undefined, and nothing changed, when one execution finds no room.
 * @returns those that moved, with their new destinations.
 */
export function moveAway(tick: Tick, cell: number): readonly DraftExecution[] | undefined {
  const from: Destination = { kind: 'cell', index: cell }
  const leaving = ownersOf(tick, from)
  for (const member of leaving) member.destination = place(tick, cell)
  if (!tick.guards.isReserved(leaving)) {
    for (const member of leaving) member.destination = { ...from }
    return undefined
  }
  for (const member of leaving) reroute(tick, member, member.destination)
  pushRoutes(tick, leaving)
  return leaving
}
