/**
 * @file What must hold after every event (scheduler.md 3.3). Pure; used by the property tests and by the live
 * controller. I5 (pinned key-value blocks) and I10 (what a harness sees) concern the forwarding point, I11 is liveness.
 *
 * I2 with over-commit: a destination never owns more than floor(slots x overCommit) executions. A move counts slots
 * alone: it begins only when the slots that stay hold everything unfinished, and sends nothing beyond the slots of its
 * new destination. So a move never makes an execution wait, or take turns, that did not before.
 */
import { MOST_KEPT } from './early.ts'
import { mostExecutions } from './over-commit.ts'
import { sameDestination, slotsUsed } from './place.ts'
import { stalenessBound } from './staleness.ts'
import { dispatchDepth, hasSignal, isResolved, isUnfinished } from './state.ts'
import { allMicroSteps } from './steps.ts'
import { membersOf } from './tick.ts'
import type { CellSlot, ExecutionSlot, SchedulerState } from './types.ts'
import { rolloutCapacity, servesRollout, waterLevel } from './waterlevel.ts'

type Members = readonly ExecutionSlot[]
type Report = (name: string, holds: boolean) => void

/** Names of the invariants that `state`, or the change from `previous` to it, breaks; empty when all is well. */
export function checkInvariants(state: SchedulerState, previous?: SchedulerState): string[] {
  const broken: string[] = []
  const report: Report = (name, holds) => {
    if (!holds) broken.push(name)
  }
  const members = membersOf(state.groups)
  counters(state, members, report)
  slots(state, members, report)
  roles(state, report)
  move(state, members, report)
  versions(state, report)
  training(state, report)
  groups(state, report)
  if (previous !== undefined) change(state, previous, report)
  return broken
}

function counters(state: SchedulerState, members: Members, report: Report): void {
  const { dispatched, started, terminated } = state
  const unfinished = members.filter((m) => isUnfinished(m))
  report('I1 counters are out of order', terminated >= 0 && terminated <= started && started <= dispatched)
  report('I1 the water level is not the unfinished executions', waterLevel(state) === unfinished.length)
  const queued = unfinished.filter((m) => m.phase === 'queued').length
  report('I1 pending is not the queue', dispatched - started === queued)
}

function slots(state: SchedulerState, members: Members, report: Report): void {
  const { config } = state
  const placed = members.filter((m) => m.destination !== undefined)
  const isWithin = placed.length <= rolloutCapacity(state) || config.overCommit > 1
  report('I2 more executions placed than there is capacity', isWithin)
  config.standaloneSlots.forEach((count, index) => {
    const used = slotsUsed(state, { kind: 'standalone', index })
    const serves = state.standalone[index]?.phase === 'serving'
    report(`I2 engine ${index} owns executions it does not serve`, used === 0 || serves)
    report(`I2 standalone ${index} is over its slots`, used <= mostExecutions(count, config))
  })
  state.cells.forEach((_, index) => {
    const used = slotsUsed(state, { kind: 'cell', index })
    report(`I2 cell ${index} is over its slots`, used <= mostExecutions(config.cellSlots, config))
    report(`I2 cell ${index} owns executions it does not serve`, used === 0 || servesRollout(state, index))
  })
  const ids = new Set(members.map((m) => m.executionId))
  report('I4 an execution is there twice', ids.size === members.length)
  for (const member of members) {
    const mayOwn = member.phase === 'running' || member.phase === 'retrying'
    const owns = member.destination !== undefined
    report('I4 an execution that does not run owns a slot', !owns || mayOwn)
    report('I4 a running execution owns no slot', owns || member.phase !== 'running')
  }
}

/** Executions beyond the slots of the destinations that own them. */
function overflow(state: SchedulerState): number {
  const { standaloneSlots, cellSlots } = state.config
  const over = (kind: 'cell' | 'standalone', index: number, count: number): number =>
    Math.max(0, slotsUsed(state, { kind, index }) - count)
  return (
    state.cells.reduce((sum, _, index) => sum + over('cell', index, cellSlots), 0) +
    standaloneSlots.reduce((sum, count, index) => sum + over('standalone', index, count), 0)
  )
}

function roles(state: SchedulerState, report: Report): void {
  const { cells, transfer, prefix, phase, openStep } = state
  for (const [index, cell] of cells.entries()) {
    const isMoving = transfer?.cell === index
    report(`I3 cell ${index} trains outside the prefix`, cell.phase !== 'training' || index < prefix)
    report(`I3 cell ${index} drains without a move`, cell.phase !== 'draining' || isMoving)
    report(`I3 cell ${index} enters training unasked`, cell.phase !== 'entering' || isMoving || index < prefix)
    const mayServe = phase === 'publishing' || phase === 'done' || phase === 'failed' || index >= prefix
    report(`I3 cell ${index} of the prefix is in rollout`, cell.phase !== 'rollout' || mayServe)
    membership(state, index, cell, report)
  }
  if (openStep?.phase === 'open') {
    report('I6 members without the core', cells[0]?.joined === true || cells.every((cell) => !cell.joined))
  }
}

function membership({ openStep }: SchedulerState, index: number, cell: CellSlot, report: Report): void {
  report(`I6 cell ${index} is a member without training`, !(cell.joined || cell.joining) || cell.phase === 'training')
  report(`I6 cell ${index} works without being a member`, cell.claim === undefined || cell.joined)
  report(`I6 cell ${index} is a member of nothing`, !cell.joined || openStep !== undefined)
  const { early, kept } = cell
  report(
    `I7 cell ${index} keeps gradients of weights it may not have`,
    cell.joined || (early === undefined && kept.length === 0),
  )
  report(`I7 cell ${index} keeps more gradients than it may`, kept.length <= MOST_KEPT)
  report(`I7 cell ${index} does two things at once`, early === undefined || cell.claim === undefined)
}

function move(state: SchedulerState, members: Members, report: Report): void {
  const { transfer, cells, prefix, config } = state
  if (transfer === undefined) return
  const expected = transfer.phase === 'entering' ? 'entering' : 'draining'
  report('I3 the move is not of the next cell', transfer.cell === prefix && cells[prefix]?.phase === expected)
  // One that cancels already is undone when its cell has nothing running any more.
  const mayBeUndone = transfer.phase === 'handing-over' && config.policy !== 'async'
  report(
    'I2 a move goes on that leaves an execution no place',
    !mayBeUndone || members.every((m) => m.phase !== 'held'),
  )
  report('I3 a stopped run moves a cell', !state.stopping || transfer.phase !== 'handing-over')
}

/** E1: within a burst, whoever serves has the published version. */
function versions(state: SchedulerState, report: Report): void {
  if (state.phase !== 'running') return
  for (const [index, cell] of state.cells.entries()) {
    const isCurrent = cell.policyVersion === state.policyVersion && !cell.publishing
    report(`E1 cell ${index} serves another version than the published one`, isCurrent || cell.phase !== 'rollout')
  }
  for (const [index, engine] of state.standalone.entries()) {
    const isCurrent = engine.policyVersion === state.policyVersion && !engine.publishing
    report(`E1 engine ${index} serves another version than the published one`, isCurrent || engine.phase === 'failed')
  }
}

function training(state: SchedulerState, report: Report): void {
  const step = state.openStep
  const claims = state.cells.flatMap((cell) => (cell.claim === undefined ? [] : [cell.claim]))
  const accumulated = state.cells.flatMap((cell) => cell.accumulated)
  if (step === undefined) {
    report('I7 work without a step', claims.length + accumulated.length === 0)
    return
  }
  report('I7 the open step is not the next one', step.index === state.step)
  const kept = state.cells.flatMap((cell) => [...cell.kept, ...(cell.early === undefined ? [] : [cell.early])])
  report('I7 a gradient is kept twice', new Set(kept.map((k) => k.executionId)).size === kept.length)
  if (step.phase !== 'optimizing') {
    const there = [...step.queue, ...claims, ...accumulated].map((id) => `${id.groupId}/${id.index}`).toSorted()
    const expected = allMicroSteps(step)
      .map((id) => `${id.groupId}/${id.index}`)
      .toSorted()
    report('I7 a micro-step is lost or doubled', there.join() === expected.join())
  }
  if (step.phase !== 'open') {
    report('I7 a step ends with work left', step.queue.length + claims.length === 0)
    report('I7 a step ends without its groups', step.groups.length === state.config.groupsPerStep)
  }
}

function groups(state: SchedulerState, report: Report): void {
  const bound = stalenessBound(state.config)
  const assigned = state.groups.filter((g) => g.phase === 'assigned')
  const inStep = state.openStep?.groups ?? []
  const inStepIds = new Set(inStep.map((g) => g.groupId))
  report('I9 a group is there twice', new Set(state.groups.map((g) => g.groupId)).size === state.groups.length)
  report('I9 too many groups in a step', inStep.length <= state.config.groupsPerStep)
  const isSame = assigned.length === inStep.length && assigned.every((g) => inStepIds.has(g.groupId))
  report('I9 assigned groups are not those of the step', inStepIds.size === inStep.length && isSame)
  for (const group of state.groups) {
    const trainedAt = group.phase === 'assigned' ? state.step : group.trainedStep
    report('I8 a group is too stale', trainedAt === undefined || trainedAt - group.dispatchVersion <= bound)
    const isWhole = group.members.every((m) => isResolved(m)) && hasSignal(state.config, group.members)
    report('I9 a group goes to training without its scores', group.phase === 'running' || isWhole)
    report('I9 trained without a step', (group.phase === 'trained') === (group.trainedStep !== undefined))
  }
}

function change(state: SchedulerState, previous: SchedulerState, report: Report): void {
  for (const name of ['dispatched', 'started', 'terminated', 'dispatches', 'serial'] as const) {
    report(`I1 ${name} fell`, state[name] >= previous[name])
  }
  const hasDispatched = state.dispatches > previous.dispatches
  report('I1 the water level rose without a dispatch', hasDispatched || waterLevel(state) <= waterLevel(previous))
  const total = state.groups.length + state.creating
  const earlier = previous.groups.length + previous.creating
  report('I9 more groups than the dispatch depth', total <= Math.max(dispatchDepth(state), earlier))
  if (state.transfer !== undefined && state.transfer.id !== previous.transfer?.id) {
    const isWait = state.config.policy === 'async'
    const level = waterLevel(state) + state.creating * state.config.groupSize
    report('I2 a move left too little capacity', isWait || level <= rolloutCapacity(state))
    report('I2 a move sent an execution beyond the slots', overflow(state) <= overflow(previous))
  }
  report('the clock went back', state.nowMs >= previous.nowMs)
  const isEnough = state.excludedInARow < state.config.excludedGroupsLimit || state.phase === 'failed'
  report('more groups were lost in a row than the limit', isEnough)
  state.cells.forEach((cell, index) => {
    const before = previous.cells[index]
    if (before === undefined) return
    report(`I4 the epoch of cell ${index} fell`, cell.epoch >= before.epoch)
    const begins = cell.joining && (!before.joining || cell.epoch > before.epoch)
    report(`I6 cell ${index} joins while weights change`, !begins || state.openStep?.phase === 'open')
    const isWithin = cell.restarts === before.restarts || cell.restarts <= state.config.cellRestarts
    report(`cell ${index} was restarted beyond the budget`, isWithin)
  })
  attempts(state, previous, report)
}

/** What may become of a member: a newer route with every new destination, attempts within the budget. */
function attempts(state: SchedulerState, previous: SchedulerState, report: Report): void {
  const present = new Map(state.groups.map((g) => [g.groupId, g.members]))
  for (const group of previous.groups) {
    const now = present.get(group.groupId) ?? []
    for (const [index, before] of group.members.entries()) {
      const after = now[index]
      if (after === undefined) continue
      report('I4 a route epoch fell', after.routeEpoch >= before.routeEpoch)
      const isSame = sameDestination(after.destination, before.destination) || !isUnfinished(after)
      report('I4 a route changed without a new epoch', isSame || after.routeEpoch > before.routeEpoch)
      const isWithin = after.attempt === before.attempt || after.attempt < state.config.executionAttempts
      report('I4 an attempt beyond the budget', isWithin)
      report('I9 a score was taken back', !isResolved(before) || after.phase === before.phase)
    }
  }
}
