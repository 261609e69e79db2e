/**
 * @file The safety rules of the machine, each a pure predicate with a name, so that a test can break one and see an
 * invariant or the books of a cluster catch it (`mutations.test.ts`). What a rule protects stands in brackets.
 */
import { mayAssign } from './staleness.ts'
import { dispatchDepth, isResolved, isUnfinished } from './state.ts'
import type { CreatedGroup } from './messages.ts'
import type {
  CellSlot,
  EarlyGradient,
  ExecutionSlot,
  GroupSlot,
  SchedulerState,
  StandaloneSlot,
  StepSlot,
  TransferSlot,
} from './types.ts'
import { servesRollout, waterLevelAllows } from './waterlevel.ts'

type Cells = Pick<SchedulerState, 'cells' | 'config'>

export const GUARDS = {
  /** Who leaves: [I2] */
  waterLevelAllows,
  /** R3: [I8] */
  mayAssign,

  // Fences: a report counts only as the answer to what was asked last.
  /** [I4, I6, I7] */
  isOfCell: (cell: CellSlot, epoch: number): boolean => cell.epoch === epoch,
  /** Of gathering and optimizing, which only the core does: [I6, I7] */
  isOfCore: (core: CellSlot, epoch: number): boolean => core.epoch === epoch,
  /** [I2, I4] */
  isOfEngine: (engine: StandaloneSlot, epoch: number): boolean => engine.epoch === epoch,
  /** [I5, I10] */
  isOfTransfer: (transfer: TransferSlot, id: number, phase: TransferSlot['phase']): boolean =>
    transfer.id === id && transfer.phase === phase,
  /** Of gathering and optimizing: [I7] */
  isOfOpenStep: (state: SchedulerState, index: number): boolean => state.openStep?.index === index,
  /** Of micro-steps built: [I7] */
  isOfStep: (step: StepSlot, index: number, attempt: number): boolean =>
    step.index === index && step.attempt === attempt,
  /** Of a micro-step done: [I7] */
  isOfClaim: (cell: CellSlot, key: string): boolean => cell.claim?.key === key,
  /** Of a version taken: [E1] */
  isOfVersion: (published: number, taken: number): boolean => published === taken,
  /** Of groups created: [I1, I9] */
  isAskedFor: (state: SchedulerState, created: readonly CreatedGroup[]): boolean =>
    state.creating > 0 && !state.groups.some((group) => created.some(({ groupId }) => groupId === group.groupId)),
  /** Of a checkpoint: [I9] */
  isOfCheckpoint: (state: SchedulerState, step: number): boolean =>
    state.phase === 'checkpointing' && step === state.step,
  /** Of the next attempt: [I4] */
  isRetrying: (member: ExecutionSlot): boolean => member.phase === 'retrying',
  /** The start of a run, once: [I1, I9] */
  isIdle: (state: SchedulerState): boolean => state.phase === 'idle',
  /** After a stop nothing begins. */
  mayBegin: (state: SchedulerState): boolean => !state.stopping,

  // Slots and routes.
  /** [I2] */
  hasRoom: (used: number, slots: number): boolean => used < slots,
  /** [I2] */
  mayServe: (state: Cells, cell: number): boolean => servesRollout(state, cell),
  /** [I2, I4] */
  engineServes: (engine: StandaloneSlot): boolean => engine.phase === 'serving',
  /** All or nothing: [I4] */
  isReserved: (leaving: readonly ExecutionSlot[]): boolean => leaving.every((m) => m.destination !== undefined),
  /** [I4] */
  nextRouteEpoch: (epoch: number): number => epoch + 1,

  // Moves.
  /** One at a time, and with nothing outstanding: [I3, E1] */
  mayLeave: (state: SchedulerState, cell: CellSlot): boolean =>
    state.transfer === undefined && cell.phase === 'rollout' && !cell.publishing,
  /** A level about to rise is not the level: [I2] */
  isLevelKnown: (state: SchedulerState): boolean => state.creating === 0,
  /** [I10] */
  mayGoOn: (state: SchedulerState): boolean => movesOn(state),

  // Steps.
  /** No more than B groups: [I9] */
  mayTake: (state: SchedulerState, step: StepSlot): boolean => step.groups.length < state.config.groupsPerStep,
  /** Never while weights change: [I6] */
  mayJoin: (step: StepSlot): boolean => step.phase === 'open',
  /** The core holds the weights: [I6] */
  coreIsIn: (core: CellSlot | undefined): boolean => core?.joined === true,
  /** [I6, I7] */
  mayClaim: (cell: CellSlot): boolean => cell.joined && cell.claim === undefined && cell.early === undefined,
  /** Of a gradient to be kept: [I7] */
  isOfEarly: (cell: CellSlot, key: string): boolean => cell.early?.key === key,
  /** Only its holder has it: [I7] */
  mayApply: (cell: CellSlot, kept: EarlyGradient): boolean => cell.kept.some(({ key }) => key === kept.key),
  /** A kept gradient serves once: [I7] */
  staysKept: (kept: EarlyGradient, applied: string): boolean => kept.key !== applied,
  /** A lost member's work returns while its gradient is not gathered: [I7] */
  returnsWork: (step: StepSlot): boolean => step.phase === 'open',
  /** [I7] */
  isComplete: (state: SchedulerState, step: StepSlot): boolean =>
    step.groups.length === state.config.groupsPerStep &&
    step.queue.length === 0 &&
    step.groups.every((g) => g.microSteps !== undefined) &&
    state.cells.every((cell) => cell.claim === undefined),
  /** [I7] */
  isReducing: (step: StepSlot): boolean => step.phase === 'reducing',
  /** The core died with steps no checkpoint holds: [I6, I9] */
  mustUndo: (state: SchedulerState, cell: number, wasTraining: boolean): boolean =>
    cell === 0 && wasTraining && state.phase === 'running',

  // Boundaries.
  /** Whoever serves has answered: [E1] */
  isAcked: (state: SchedulerState): boolean =>
    state.cells.every(
      ({ publishing, phase }) => !publishing && phase !== 'returning' && phase !== 'draining' && phase !== 'entering',
    ) && state.standalone.every((engine) => !engine.publishing),
  /** [I9] */
  roomForGroups: (state: SchedulerState, outstanding: number): number => dispatchDepth(state) - outstanding,

  // Executions and groups.
  /** Terminated once: [I1] */
  isUnfinished,
  /** Resolved once: [I9] */
  isUnresolved: (member: ExecutionSlot): boolean => !isResolved(member),
  /** Ready once, and only when all is known: [I9] */
  isGroupDone: (group: GroupSlot): boolean => group.phase === 'running' && group.members.every((m) => isResolved(m)),
  /** [I4] */
  mayRetry: (member: ExecutionSlot, attempts: number): boolean =>
    member.phase !== 'evaluating' && !member.cut && member.attempt + 1 < attempts,
  /** [budget] */
  mayRestart: (restarts: number, budget: number): boolean => restarts < budget,
  /** [budget] */
  mayLoseMore: (lostInARow: number, limit: number): boolean => lostInARow < limit,
  /** [clock] */
  timeOf: (nowMs: number, atMs: number): number => Math.max(nowMs, atMs),
} as const

export type Guards = { readonly [K in keyof typeof GUARDS]: (typeof GUARDS)[K] }

/**
 * A move that may still be undone goes on while it makes sense: not at the end of a burst, which would send the cell
 * straight back, not in a stopped run, and not while an execution has no place that the cell could give it back.
 */
function movesOn(state: SchedulerState): boolean {
  if (state.stopping || state.burst.stepsLeft === 0) return false
  if (state.config.policy === 'async') return true
  return state.groups.every((g) => g.phase !== 'running' || g.members.every((m) => m.phase !== 'held'))
}
