/**
 * @file The cold start: supervised steps on demonstrations, computed by all cells together.
 *
 * Each step's demonstrations are cut into one micro-step per cell; the core reduces the gradients in cell
 * order, takes the optimizer step, and the others pull its weights.
 */
import { hashSeed, type Rng, seededRng } from '../core/rng.ts'
import type { Cell } from '../ports/cell.ts'
import type { MicroBatch, OptimizerParams } from '../training/batch.ts'
import type { PackExecution } from '../training/forest.ts'
import { demonstration, packMicroSteps } from '../training/pack.ts'
import type { DemonstrationTokens } from './demonstration.ts'

export interface Lesson {
  readonly demonstrations: readonly DemonstrationTokens[]
  readonly steps: number
  /** Tokens of one step, as the demonstrations have them before prefixes are shared. [tokens] */
  readonly batchTokens: number
}

export interface WarmstartPlan {
  /** Trained one after the other, for example excerpts before whole conversations. */
  readonly lessons: readonly Lesson[]
  readonly maxMicroStepTokens: number
  readonly optimizer: (step: number) => OptimizerParams
  readonly seed: number
  readonly onStep?: (step: number, loss: number) => void
}

/** @returns mean loss per demonstrated token over the last tenth of the steps. [nats] */
export async function warmstart(cells: readonly Cell[], epoch: number, plan: WarmstartPlan): Promise<number> {
  const [core] = cells
  if (core === undefined) return Number.NaN
  await Promise.all(cells.map((cell) => cell.enterTraining(epoch)))
  const rng = seededRng(hashSeed('warmstart', plan.seed))
  const losses: number[] = []
  const steps = plan.lessons.flatMap((lesson) => Array.from({ length: lesson.steps }, () => lesson))
  for (const [step, lesson] of steps.entries()) {
    const work = shareOut(pickBatch(lesson, rng), cells.length, plan.maxMicroStepTokens)
    const sums = await Promise.all(cells.map((cell, i) => accumulate(cell, epoch, step, work[i] ?? [])))
    const busy = cells.filter((_, i) => i > 0 && (work[i]?.length ?? 0) > 0)
    if (busy.length > 0) {
      await core.reduceGradients(
        epoch,
        busy.map((cell) => cell.address),
      )
    }
    await core.optimizerStep(epoch, `warmstart-${step}`, plan.optimizer(step))
    await Promise.all(cells.slice(1).map((cell) => cell.pullWeights(epoch, core.address, 0)))
    const loss = sums.reduce((a, b) => a + b, 0)
    losses.push(loss)
    plan.onStep?.(step + 1, loss)
  }
  const tail = losses.slice(-Math.max(1, Math.floor(steps.length / 10)))
  return tail.reduce((a, b) => a + b, 0) / tail.length
}

function pickBatch({ demonstrations, batchTokens }: Lesson, rng: Rng): readonly PackExecution[] {
  const chosen: DemonstrationTokens[] = []
  for (let tokens = 0; tokens < batchTokens;) {
    const next = demonstrations[rng.below(demonstrations.length)]
    if (next === undefined) break
    chosen.push(next)
    tokens += next.tokenIds.length
  }
  const targets = chosen.reduce((sum, d) => sum + d.targetMask.reduce((a, b) => a + b, 0), 0)
  return chosen.map((d, i) => demonstration(`demonstration-${i}`, { ...d, weight: 1 / targets }))
}

/** One list of micro-steps per cell, as even as whole demonstrations allow. */
function shareOut(batch: readonly PackExecution[], cells: number, maxTokens: number): readonly MicroBatch[][] {
  const size = Math.ceil(batch.length / cells)
  return Array.from({ length: cells }, (_, i) =>
    packMicroSteps(batch.slice(i * size, (i + 1) * size), { maxTokens, mergePrefix: true }).map((p) => p.batch),
  )
}

async function accumulate(cell: Cell, epoch: number, step: number, work: readonly MicroBatch[]): Promise<number> {
  await cell.zeroGradients(epoch)
  let loss = 0
  for (const [i, batch] of work.entries()) {
    const key = `warmstart-${step}-${i}`
    loss += (await cell.forwardBackward(epoch, key, batch, { kind: 'cross-entropy' })).loss
  }
  return loss
}
