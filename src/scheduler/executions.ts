/** @file Executions from queue to score (E2, E4, E5, E6). */
import type { ExecutionId } from '../core/ids.ts'
import { place, reroute } from './place.ts'
import { rememberCompletion } from './carry-over.ts'
import { pushRoutes } from './routes.ts'
import { hasSignal } from './state.ts'
import { beginsToRun, hold, noteQuorum } from './straggler.ts'
import { failRun, findExecution, nextSerial, writable } from './tick.ts'
import type { DraftExecution, DraftGroup, Tick } from './tick.ts'
import type { ExecutionPhase, ExecutionSlot } from './types.ts'

/** E2: first those that lost their destination, then the queue, first group first. */
export function admit(tick: Tick): boolean {
  const placed: DraftExecution[] = []
  const begun: ExecutionId[] = []
  for (const { group, member: waiting } of [...membersIn(tick, 'held'), ...membersIn(tick, 'queued')]) {
    const destination = place(tick)
    if (destination === undefined) break
    const member = writable(tick, group, waiting)
    reroute(tick, member, destination)
    placed.push(member)
    if (member.phase === 'queued') {
      begun.push(member.executionId)
      tick.state.started++
    }
    member.phase = 'running'
    beginsToRun(tick.state, group, member)
  }
  pushRoutes(tick, placed)
  for (const executionId of begun) tick.commands.push({ kind: 'start-execution', executionId })
  return placed.length > 0
}

function membersIn(
  { state }: Tick,
  phase: ExecutionPhase,
): { readonly group: DraftGroup; readonly member: ExecutionSlot }[] {
  const found: { readonly group: DraftGroup; readonly member: ExecutionSlot }[] = []
  for (const group of state.groups) {
    if (group.phase !== 'running') continue
    for (const member of group.members) if (member.phase === phase) found.push({ group, member })
  }
  return found
}

/** E4: the slot is free and f grows, once. */
function terminate(tick: Tick, member: DraftExecution): void {
  if (!tick.guards.isUnfinished(member)) return
  if (member.phase === 'queued') tick.state.started++
  tick.state.terminated++
  member.destination = undefined
}

export function executionEnded(tick: Tick, executionId: ExecutionId): void {
  const found = findExecution(tick, executionId)
  if (found === undefined || !tick.guards.isUnfinished(found.member)) return
  terminate(tick, found.member)
  found.member.phase = 'evaluating'
  noteQuorum(tick.state, found.group)
}

/** E5. Valid from any phase before the end: an end that was not told is counted now. */
export function executionResolved(tick: Tick, executionId: ExecutionId, phase: 'scored' | 'excluded'): void {
  const found = findExecution(tick, executionId)
  if (found === undefined || !tick.guards.isUnresolved(found.member)) return
  terminate(tick, found.member)
  found.member.phase = phase
  noteQuorum(tick.state, found.group)
  resolveGroup(tick, found.group)
}

/** An attempt the infrastructure lost. The next one keeps the slot, so the water level does not move. */
export function executionFailed(tick: Tick, executionId: ExecutionId): void {
  const found = findExecution(tick, executionId)
  if (found === undefined || !tick.guards.isUnresolved(found.member) || found.member.phase === 'retrying') return
  // One that ended has been counted in f: it cannot run again, whatever happened to its score.
  if (!tick.guards.mayRetry(found.member, tick.state.config.executionAttempts)) {
    executionResolved(tick, executionId, 'excluded')
    return
  }
  found.member.phase = 'retrying'
  tick.commands.push({ kind: 'new-attempt', executionId })
}

export function attemptCreated(tick: Tick, executionId: ExecutionId, nextId: ExecutionId): void {
  const { state } = tick
  const found = findExecution(tick, executionId)
  if (found === undefined || !tick.guards.isRetrying(found.member)) return
  const { group, member } = found
  member.executionId = nextId
  member.attempt++
  reroute(tick, member, member.destination)
  // It has its own time: what the lost attempt took is not counted.
  member.startedAtMs = undefined
  beginsToRun(state, group, member)
  member.phase = 'running'
  if (member.destination === undefined) hold(state, member)
  pushRoutes(tick, [member])
  tick.commands.push({ kind: 'start-execution', executionId: nextId })
}

/** E6: ready with two scores, else gone; its place is filled by a later dispatch. */
function resolveGroup(tick: Tick, group: DraftGroup): void {
  const { state } = tick
  if (!tick.guards.isGroupDone(group)) return
  if (hasSignal(state.config, group.members)) {
    group.phase = 'ready'
    group.readyOrder = nextSerial(state)
    rememberCompletion(state, group)
    state.excludedInARow = 0
    return
  }
  state.groups = state.groups.filter((g) => g !== group)
  state.excludedGroups++
  state.excludedInARow++
  if (!tick.guards.mayLoseMore(state.excludedInARow, state.config.excludedGroupsLimit)) {
    failRun(tick, `${state.excludedInARow} groups in a row had fewer than two scored executions`)
  }
}
