/** @file Gradients that a cell keeps aside: a refusal is an answer, and the micro-step is computed as any other. */
import { GyreError } from '../core/errors.ts'
import type { Cell } from '../ports/cell.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { MicroBatch } from '../training/batch.ts'
import type { CommandOf, RunWork } from './controller-types.ts'

export interface EarlyDeps {
  readonly cell: Cell
  readonly work: RunWork
  /** Ends with E_CELL_TIMEOUT when a micro-step's time is over. */
  readonly within: <T>(promise: Promise<T>, what: string) => Promise<T>
}

/** The trainer is well, and says that this gradient cannot be kept, is not kept, or cannot serve. */
const REFUSALS: ReadonlySet<string> = new Set([
  'E_TRAINER_NOT_HOLDABLE',
  'E_TRAINER_HELD_FULL',
  'E_TRAINER_NOT_HELD',
  'E_TRAINER_HELD_SIGN',
  'E_TRAINER_RANGE',
  'E_TRAINER_NONFINITE',
])

/** @throws what says that the cell is not well. */
export async function holdGradient(
  { cell, work, within }: EarlyDeps,
  command: CommandOf<'hold-gradient'>,
): Promise<SchedulerEvent> {
  const { epoch, step, early } = command
  const answer = { cell: command.cell, epoch, key: early.key }
  const batch = batchOf(work, command)
  const holding = batch === undefined ? undefined : cell.holdGradient?.(epoch, early.key, batch, work.objective())
  if (batch === undefined || holding === undefined) return { kind: 'gradient-refused', ...answer }
  return refusable(answer, async () => {
    const result = await within(holding, `keeping the gradient ${early.key} on cell ${command.cell}`)
    work.early?.held(early.executionId, step, batch, result)
    return { kind: 'gradient-held', ...answer }
  })
}

/** What is wrong with an execution is for the cut of its group to say. */
function batchOf(work: RunWork, { early }: CommandOf<'hold-gradient'>): MicroBatch | undefined {
  try {
    return work.early?.batch(early.executionId)
  } catch {
    return undefined
  }
}

/** @throws what says that the cell is not well. */
export async function applyHeld(
  { cell, within }: EarlyDeps,
  command: CommandOf<'apply-held'>,
  scale: number,
): Promise<SchedulerEvent> {
  const { epoch, claim } = command
  const answer = { cell: command.cell, epoch, key: claim.key }
  const applying = cell.applyHeld?.(epoch, claim.key, claim.held, scale)
  if (applying === undefined) return { kind: 'gradient-refused', ...answer }
  return refusable(answer, async () => {
    await within(applying, `adding the gradient ${claim.held} on cell ${command.cell}`)
    return { kind: 'micro-step-done', ...answer }
  })
}

async function refusable(
  answer: { readonly cell: number; readonly epoch: number; readonly key: string },
  act: () => Promise<SchedulerEvent>,
): Promise<SchedulerEvent> {
  try {
    return await act()
  } catch (error) {
    if (error instanceof GyreError && REFUSALS.has(error.code)) return { kind: 'gradient-refused', ...answer }
    throw error
  }
}
