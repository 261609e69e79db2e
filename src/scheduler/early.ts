/**
 * @file Gradients of scored executions, computed before their group is complete (scheduler.md 5).
 *
 * An idle member computes the gradient of an execution for an advantage of 1 or -1 and keeps it aside. When the group
 * is cut, such an execution is a micro-step of its own, and only the holder can add what it keeps, scaled. Whatever
 * ends the membership of the holder ends what it keeps, and the micro-step is computed as any other. So a kept gradient
 * is never more than a shorter way to do a micro-step, and I7 counts micro-steps as it does without.
 *
 * Nothing that is asked for waits for it, but for the one gradient that an idle member is computing: none begins while a
 * micro-step is queued or being built, and only as many groups are looked at as the open step can still take.
 */
import type { ExecutionId, GroupId } from '../core/ids.ts'
import { isResolved } from './state.ts'
import { nextSerial } from './tick.ts'
import type { DraftCell, DraftState, DraftStep, Tick } from './tick.ts'
import type { EarlyGradient, MicroStepId, SchedulerState, StepSlot } from './types.ts'

/** Of one cell. [gradients] */
export const MOST_KEPT = 64

export function beginEarly(tick: Tick): boolean {
  const { state, guards } = tick
  const step = state.openStep
  if (!state.config.earlyForward || step?.phase !== 'open' || !hasNothingElse(step)) return false
  let begun = false
  for (const [index, cell] of state.cells.entries()) {
    if (!guards.mayClaim(cell) || cell.kept.length >= MOST_KEPT) continue
    const next = nextOf(tick, step)
    if (next === undefined) break
    cell.early = { ...next, key: `early.${step.index}.${step.attempt}.${nextSerial(state)}` }
    step.tried.push(next.executionId)
    tick.commands.push({
      kind: 'hold-gradient',
      cell: index,
      epoch: cell.epoch,
      step: step.index,
      early: { ...cell.early },
    })
    begun = true
  }
  return begun
}

function hasNothingElse(step: StepSlot): boolean {
  return step.queue.length === 0 && step.groups.every((g) => g.microSteps !== undefined)
}

/** Of the groups that are closest to complete, as many as find room: the first execution that nobody has tried. */
function nextOf(
  { state, guards }: Tick,
  step: StepSlot,
): { readonly groupId: GroupId; readonly executionId: ExecutionId } | undefined {
  const room = state.config.groupsPerStep - step.groups.length
  const tried = new Set(step.tried)
  const likely = state.groups
    .filter((g) => g.phase === 'running' && guards.mayAssign(state, g))
    .map((group) => ({ group, missing: group.members.filter((m) => !isResolved(m)).length }))
    .toSorted((a, b) => a.missing - b.missing)
    .slice(0, room)
  for (const { group } of likely) {
    const member = group.members.find((m) => m.phase === 'scored' && !tried.has(m.executionId))
    if (member !== undefined) return { groupId: group.groupId, executionId: member.executionId }
  }
  return undefined
}

export function gradientHeld(tick: Tick, cell: DraftCell, key: string): void {
  if (cell.early === undefined || !tick.guards.isOfEarly(cell, key)) return
  cell.kept.push(cell.early)
  cell.early = undefined
}

/** Not kept, or not to be used: the micro-step is computed as any other. */
export function gradientRefused(tick: Tick, cell: DraftCell, key: string): void {
  if (cell.early !== undefined && tick.guards.isOfEarly(cell, key)) cell.early = undefined
  const { claim } = cell
  if (claim?.held === undefined || !tick.guards.isOfClaim(cell, key)) return
  tick.state.openStep?.queue.unshift({ groupId: claim.groupId, index: claim.index })
  cell.claim = undefined
}

/** Members of a group whose gradient somebody keeps. */
export function heldBy(state: SchedulerState | DraftState, groupId: GroupId): ExecutionId[] {
  return state.cells.flatMap((cell) => cell.kept.filter((k) => k.groupId === groupId).map((k) => k.executionId))
}

/**
 * The next micro-step of an idle member, taken from the queue: one whose gradient it keeps, else the oldest that no
 * other member keeps.
 */
export function takeNext(
  tick: Tick,
  step: DraftStep,
  cell: DraftCell,
): { readonly microStep: MicroStepId; readonly held: string | undefined } | undefined {
  const { state, guards } = tick
  const waiting = step.queue.map((id) => keptFor(state, step, id))
  const own = waiting.findIndex((kept) => kept !== undefined && guards.mayApply(cell, kept))
  const at = own >= 0 ? own : waiting.indexOf(undefined)
  const [microStep] = at >= 0 ? step.queue.splice(at, 1) : []
  if (microStep === undefined) return undefined
  const held = waiting[at]?.key
  if (held !== undefined) cell.kept = cell.kept.filter((kept) => guards.staysKept(kept, held))
  return { microStep, held }
}

function keptFor(state: DraftState, step: StepSlot, { groupId, index }: MicroStepId): EarlyGradient | undefined {
  const group = step.groups.find((g) => g.groupId === groupId)
  const early = group?.early.find((e) => e.index === index)
  if (early === undefined) return undefined
  for (const cell of state.cells) {
    const kept = cell.kept.find((k) => k.executionId === early.executionId)
    if (kept !== undefined) return kept
  }
  return undefined
}

/** A member leaves: others may try what it kept or was about to. */
export function forgetEarly(step: DraftStep, cell: DraftCell): void {
  const gone = new Set([...cell.kept, ...(cell.early === undefined ? [] : [cell.early])].map((k) => k.executionId))
  step.tried = step.tried.filter((id) => !gone.has(id))
}
