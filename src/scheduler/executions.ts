/** @file Executions from queue to score (E2, E4, E5, E6). */
import type { ExecutionId } from '../core/ids.ts'
import { place, reroute, sameDestination } from './place.ts'
import { hasSignal, isResolved } from './state.ts'
import { failRun, findExecution, membersOf, nextSerial } from './tick.ts'
import type { DraftExecution, DraftGroup, Tick } from './tick.ts'
import type { Destination, ScheduledRoute } from './types.ts'

export function routeOf(member: DraftExecution): ScheduledRoute {
  return { executionId: member.executionId, destination: member.destination, routeEpoch: member.routeEpoch }
}

function pushRoutes(tick: Tick, members: readonly DraftExecution[]): void {
  if (members.length > 0) tick.commands.push({ kind: 'set-routes', routes: members.map((m) => routeOf(m)) })
}

/** E2: first those that lost their destination, then the queue, first group first. */
export function admit(tick: Tick): boolean {
  const members = membersOf(tick.state.groups)
  const waiting = [...members.filter((m) => m.phase === 'held'), ...members.filter((m) => m.phase === 'queued')]
  if (waiting.length === 0) return false
  const placed: DraftExecution[] = []
  const begun: ExecutionId[] = []
  for (const member of waiting) {
    const destination = place(tick.state)
    if (destination === undefined) break
    reroute(member, destination)
    placed.push(member)
    if (member.phase === 'queued') {
      begun.push(member.executionId)
      tick.state.started++
    }
    member.phase = 'running'
  }
  pushRoutes(tick, placed)
  for (const executionId of begun) tick.commands.push({ kind: 'start-execution', executionId })
  return placed.length > 0
}

/** E13, rollout: executions of a dead cell go where there is room; the rest are held. */
export function rehome(tick: Tick, cell: number): void {
  const dead: Destination = { kind: 'cell', index: cell }
  const lost = membersOf(tick.state.groups).filter((m) => sameDestination(m.destination, dead))
  for (const member of lost) reroute(member, undefined)
  for (const member of lost) {
    member.destination = place(tick.state)
    if (member.destination === undefined && member.phase === 'running') member.phase = 'held'
  }
  pushRoutes(
    tick,
    lost.filter((m) => m.phase !== 'retrying'),
  )
}

/** R2T phases 2 and 3. All or nothing: undefined, and nothing changed, when one execution finds no room. */
export function moveAway(tick: Tick, cell: number): number | undefined {
  const from: Destination = { kind: 'cell', index: cell }
  const leaving = membersOf(tick.state.groups).filter((m) => sameDestination(m.destination, from))
  for (const [i, member] of leaving.entries()) {
    member.destination = place(tick.state, cell)
    if (member.destination === undefined) {
      for (const undone of leaving.slice(0, i + 1)) undone.destination = from
      return undefined
    }
  }
  for (const member of leaving) member.routeEpoch++
  pushRoutes(
    tick,
    leaving.filter((m) => m.phase !== 'retrying'),
  )
  return leaving.length
}

const UNFINISHED: ReadonlySet<string> = new Set(['queued', 'running', 'held', 'retrying'])

export function isUnfinished(member: DraftExecution): boolean {
  return UNFINISHED.has(member.phase)
}

/** E4: the slot is free and f grows, once. */
function terminate(tick: Tick, member: DraftExecution): void {
  if (!isUnfinished(member)) return
  if (member.phase === 'queued') tick.state.started++
  tick.state.terminated++
  member.destination = undefined
}

export function executionEnded(tick: Tick, executionId: ExecutionId): void {
  const found = findExecution(tick.state, executionId)
  if (found === undefined || !isUnfinished(found.member)) return
  terminate(tick, found.member)
  found.member.phase = 'evaluating'
}

/** E5. Valid from any phase before the end: an end that was not told is counted now. */
export function executionResolved(tick: Tick, executionId: ExecutionId, phase: 'scored' | 'excluded'): void {
  const found = findExecution(tick.state, executionId)
  if (found === undefined || isResolved(found.member)) return
  terminate(tick, found.member)
  found.member.phase = phase
  resolveGroup(tick, found.group)
}

/** An attempt the infrastructure lost. The next one keeps the slot, so the water level does not move. */
export function executionFailed(tick: Tick, executionId: ExecutionId): void {
  const found = findExecution(tick.state, executionId)
  if (found === undefined || isResolved(found.member) || found.member.phase === 'retrying') return
  // One that ended has been counted in f: it cannot run again, whatever happened to its score.
  const isOver = found.member.phase === 'evaluating' || found.member.attempt + 1 >= tick.state.config.executionAttempts
  if (isOver) {
    executionResolved(tick, executionId, 'excluded')
    return
  }
  found.member.phase = 'retrying'
  tick.commands.push({ kind: 'new-attempt', executionId })
}

export function attemptCreated(tick: Tick, executionId: ExecutionId, nextId: ExecutionId): void {
  const member = findExecution(tick.state, executionId)?.member
  if (member?.phase !== 'retrying') return
  member.executionId = nextId
  member.attempt++
  member.routeEpoch++
  member.phase = member.destination === undefined ? 'held' : 'running'
  pushRoutes(tick, [member])
  tick.commands.push({ kind: 'start-execution', executionId: nextId })
}

/** E6: ready with two scores, else gone; its place is filled by a later dispatch. */
function resolveGroup(tick: Tick, group: DraftGroup): void {
  const { state } = tick
  if (group.phase !== 'running' || !group.members.every((m) => isResolved(m))) return
  if (hasSignal(state.config, group.members)) {
    group.phase = 'ready'
    group.readyOrder = nextSerial(state)
    state.excludedInARow = 0
    return
  }
  state.groups = state.groups.filter((g) => g !== group)
  state.excludedGroups++
  state.excludedInARow++
  if (state.excludedInARow >= state.config.excludedGroupsLimit) {
    failRun(tick, `${state.excludedInARow} groups in a row had fewer than two scored executions`)
  }
}
