/** @file What every rule works on: a private copy of the state, and the commands collected so far. */
import type { ExecutionId } from '../core/ids.ts'
import type { Guards } from './guards.ts'
import type { Command } from './messages.ts'
import type { CellSlot, ExecutionSlot, GroupSlot, SchedulerState, StepSlot } from './types.ts'

/** The same data, writable. */
export type Draft<T> = T extends string | number | boolean | undefined
  ? T
  : T extends readonly (infer U)[]
    ? Draft<U>[]
    : { -readonly [K in keyof T]: Draft<T[K]> }

/** Configuration and executions are shared with the state before: an execution is written through `writable` only. */
export type DraftState = Omit<Draft<SchedulerState>, 'config' | 'groups'> & {
  readonly config: SchedulerState['config']
  groups: DraftGroup[]
}
export type DraftCell = Draft<CellSlot>
export type DraftGroup = Omit<Draft<GroupSlot>, 'members'> & { members: readonly ExecutionSlot[] }
export type DraftExecution = Draft<ExecutionSlot>
export type DraftStep = Draft<StepSlot>

export interface Tick {
  readonly state: DraftState
  readonly commands: Command[]
  /** Executions copied for this event. */
  readonly written: Set<ExecutionSlot>
  /** The safety rules, as values, so that a test can break one. */
  readonly guards: Guards
}

/** A copy that shares nothing writable with the original. What rules seldom change is shared: there is much of it. */
export function draftOf(state: SchedulerState): DraftState {
  const step = state.openStep
  return {
    ...state,
    burst: { ...state.burst },
    groups: state.groups.map((g) => ({ ...g })),
    cells: state.cells.map((c) => ({ ...c, accumulated: [...c.accumulated], kept: [...c.kept] })),
    standalone: state.standalone.map((s) => ({ ...s })),
    openStep:
      step === undefined
        ? undefined
        : {
            ...step,
            groups: step.groups.map((g) => ({ ...g, early: [...g.early] })),
            queue: [...step.queue],
            tried: [...step.tried],
          },
    transfer: state.transfer === undefined ? undefined : { ...state.transfer },
    history: { completions: [...state.history.completions], bursts: [...state.history.bursts] },
    load: { ...state.load },
  }
}

export function nextSerial(state: DraftState): number {
  return ++state.serial
}

/** Every execution, first group first. A plain loop: this runs several times per event. */
export function membersOf<M>(groups: readonly { readonly members: readonly M[] }[]): M[] {
  const out: M[] = []
  for (const group of groups) for (const member of group.members) out.push(member)
  return out
}

/** `member` of `group` to be written: a copy of this event's own, which stands in the group. */
export function writable({ written }: Tick, group: DraftGroup, member: ExecutionSlot): DraftExecution {
  if (written.has(member)) return member
  const copy = { ...member }
  group.members = group.members.map((m) => (m === member ? copy : m))
  written.add(copy)
  return copy
}

/** The group and the member whose present attempt this is. */
export function findExecution(
  tick: Tick,
  executionId: ExecutionId,
): { readonly group: DraftGroup; readonly member: DraftExecution } | undefined {
  for (const group of tick.state.groups) {
    const member = group.members.find((m) => m.executionId === executionId)
    if (member !== undefined) return { group, member: writable(tick, group, member) }
  }
  return undefined
}

/** The cell an event speaks about, unless the event is of an older epoch. */
export function currentCell(
  { state, guards }: Tick,
  event: { readonly cell: number; readonly epoch: number },
): DraftCell | undefined {
  const cell = state.cells[event.cell]
  return cell !== undefined && guards.isOfCell(cell, event.epoch) ? cell : undefined
}

/** Ends the run as failed. Idempotent. */
export function failRun(tick: Tick, reason: string): void {
  if (tick.state.phase === 'failed' || tick.state.phase === 'done') return
  tick.state.phase = 'failed'
  tick.state.failure = reason
  tick.commands.push({ kind: 'finish', outcome: 'failed', reason })
}
