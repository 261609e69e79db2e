/** @file Streaming steps: groups are assigned as they become ready, members claim micro-steps (E7, E9, E10, E11). */
import type { GroupId } from '../core/ids.ts'
import { forgetEarly, heldBy, takeNext } from './early.ts'
import { nextSerial } from './tick.ts'
import type { Draft, DraftCell, DraftState, DraftStep, Tick } from './tick.ts'
import type { EarlyMicroStep, MicroStepId, StepSlot } from './types.ts'

export function freshStep(state: DraftState): DraftStep {
  return { index: state.step, attempt: nextSerial(state), phase: 'open', groups: [], queue: [], tried: [] }
}

/** E7: the group that is ready longest and leaves more urgent ones their place. */
export function assign(tick: Tick): boolean {
  const { state } = tick
  const step = state.openStep
  if (step === undefined || !tick.guards.mayTake(state, step)) return false
  const ready = state.groups
    .filter((g) => g.phase === 'ready')
    .sort((a, b) => (a.readyOrder ?? 0) - (b.readyOrder ?? 0))
  const group = ready.find((g) => tick.guards.mayAssign(state, g))
  if (group === undefined) return false
  group.phase = 'assigned'
  step.groups.push({ groupId: group.groupId, microSteps: undefined, early: [] })
  const held = heldBy(state, group.groupId)
  tick.commands.push({
    kind: 'build-micro-steps',
    groupId: group.groupId,
    step: step.index,
    attempt: step.attempt,
    ...(held.length > 0 && { held }),
  })
  return true
}

export function microStepsBuilt(
  tick: Tick,
  event: {
    readonly groupId: GroupId
    readonly step: number
    readonly attempt: number
    readonly count: number
    readonly early?: readonly EarlyMicroStep[]
  },
): void {
  const step = tick.state.openStep
  if (step === undefined || !tick.guards.isOfStep(step, event.step, event.attempt)) return
  const group = step.groups.find((g) => g.groupId === event.groupId)
  if (group === undefined || group.microSteps !== undefined) return
  group.microSteps = event.count
  group.early = [...(event.early ?? [])]
  step.queue.push(...idsOf(event.groupId, event.count))
}

function idsOf(groupId: GroupId, count: number): Draft<MicroStepId>[] {
  return Array.from({ length: count }, (_, index) => ({ groupId, index }))
}

/** Every micro-step the step has been cut into so far. */
export function allMicroSteps(step: StepSlot): MicroStepId[] {
  return step.groups.flatMap((g) => idsOf(g.groupId, g.microSteps ?? 0))
}

/** E9: the core first, since it holds the weights; never while the optimizer is about to change them. */
export function join(tick: Tick): boolean {
  const { state } = tick
  const step = state.openStep
  if (step === undefined || !tick.guards.mayJoin(step)) return false
  const joiners = state.cells
    .map((cell, index) => ({ cell, index }))
    .filter(({ cell }) => cell.phase === 'training' && !cell.joined && !cell.joining)
    .filter(({ index }) => index === 0 || tick.guards.coreIsIn(state.cells[0]))
  for (const { cell, index } of joiners) {
    cell.joining = true
    tick.commands.push({ kind: 'join-step', cell: index, epoch: cell.epoch, step: step.index })
  }
  return joiners.length > 0
}

export function joined(tick: Tick, cell: DraftCell, stepIndex: number): void {
  if (!cell.joining || tick.state.openStep?.index !== stepIndex) return
  cell.joining = false
  cell.joined = true
  cell.joinFailures = 0
  cell.accumulated = []
}

/** E10: idle members take the oldest micro-steps, but first what they keep the gradient of. */
export function claim(tick: Tick): boolean {
  const { state } = tick
  const step = state.openStep
  if (step?.phase !== 'open') return false
  let hasClaimed = false
  for (const [index, cell] of state.cells.entries()) {
    if (!tick.guards.mayClaim(cell)) continue
    const next = takeNext(tick, step, cell)
    if (next === undefined) continue
    const { microStep, held } = next
    const taken = { ...microStep, key: `${step.index}.${step.attempt}.${nextSerial(state)}` }
    const to = { cell: index, epoch: cell.epoch, step: step.index, attempt: step.attempt }
    if (held === undefined) {
      cell.claim = taken
      tick.commands.push({ kind: 'train', ...to, claim: { ...taken } })
    } else {
      cell.claim = { ...taken, held }
      tick.commands.push({ kind: 'apply-held', ...to, claim: { ...taken, held } })
    }
    hasClaimed = true
  }
  return hasClaimed
}

export function microStepDone(tick: Tick, cell: DraftCell, key: string): void {
  if (cell.claim === undefined || !tick.guards.isOfClaim(cell, key)) return
  cell.accumulated.push({ groupId: cell.claim.groupId, index: cell.claim.index })
  cell.claim = undefined
}

/** E10, a lost member: what it claimed and what it accumulated is to be done again by others. */
export function returnWork(tick: Tick, cell: DraftCell): void {
  const step = tick.state.openStep
  // While the core reduces, the outcome decides: its gradient may already be in.
  if (step !== undefined && tick.guards.returnsWork(step)) {
    const { claim: lost, accumulated } = cell
    const claimed = lost === undefined ? [] : [{ groupId: lost.groupId, index: lost.index }]
    step.queue.unshift(...accumulated, ...claimed)
    cell.accumulated = []
  }
  if (step !== undefined) forgetEarly(step, cell)
  leaveStep(cell)
}

export function leaveStep(cell: DraftCell): void {
  cell.joined = false
  cell.joining = false
  cell.joinFailures = 0
  cell.claim = undefined
  cell.early = undefined
  cell.kept = []
}

/** E11, first half: everything is accumulated, so the core gathers it. */
export function closeStep(tick: Tick): boolean {
  const { state } = tick
  const step = state.openStep
  const core = state.cells[0]
  if (step?.phase !== 'open' || core?.joined !== true || !tick.guards.isComplete(state, step)) return false
  const from = state.cells.flatMap((cell, index) => (index > 0 && cell.accumulated.length > 0 ? [index] : []))
  if (from.length === 0) {
    optimize(tick)
  } else {
    step.phase = 'reducing'
    tick.commands.push({ kind: 'reduce', epoch: core.epoch, step: step.index, from })
  }
  return true
}

export function reduced(tick: Tick): void {
  const step = tick.state.openStep
  if (step !== undefined && tick.guards.isReducing(step)) optimize(tick)
}

function optimize(tick: Tick): void {
  const step = tick.state.openStep
  const core = tick.state.cells[0]
  if (step === undefined || core === undefined) return
  step.phase = 'optimizing'
  for (const cell of tick.state.cells) cell.accumulated = []
  tick.commands.push({
    kind: 'optimize',
    epoch: core.epoch,
    step: step.index,
    key: `${step.index}.${step.attempt}`,
    empty: allMicroSteps(step).length === 0,
  })
}

/** The core's accumulator may hold part of a lost gradient: every micro-step is done again. */
export function redoStep(tick: Tick): void {
  const step = tick.state.openStep
  if (step === undefined || !tick.guards.isReducing(step)) return
  step.phase = 'open'
  step.attempt = nextSerial(tick.state)
  step.queue = allMicroSteps(step)
  step.tried = []
  clearMembers(tick.state)
}

export function clearMembers(state: DraftState): void {
  for (const cell of state.cells) {
    // The verbs of an unfinished join are still on their way: its zeroing must not reach the next gradient.
    if (cell.joining) cell.epoch++
    leaveStep(cell)
    cell.accumulated = []
  }
}

/** Undoes an unfinished step: its groups are ready again, and late answers of its members are fenced off. */
export function abandonStep(tick: Tick): void {
  const { state } = tick
  for (const group of state.groups) if (group.phase === 'assigned') group.phase = 'ready'
  for (const cell of state.cells) if (cell.phase === 'training') cell.epoch++
  clearMembers(state)
  state.openStep = undefined
}
