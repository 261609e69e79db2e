/** @file Training on the leading thread: checks a micro-batch, places it in the shared memory, runs the passes. */
import { GyreError } from '../../../core/errors.ts'
import type { Refusal } from '../../../kernels/accumulate.ts'
import { runJob } from '../../../kernels/job.ts'
import type { Machine } from '../../../kernels/machine.ts'
import { blockPositions, TILE } from '../../../kernels/plan.ts'
import { listVisibleTiles } from '../../../kernels/visibility.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
import { type GradientSums, outOfRange, totalBound } from '../../../training/gradient-sums.ts'

export function trainerError(code: `E_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'trainer', code })
}

/**
 * Adds the batch's gradient to the accumulator.
 * @throws GyreError E_TRAINER_TOO_LONG, E_TRAINER_BATCH, E_TRAINER_NONFINITE, E_TRAINER_RANGE; nothing is added.
 */
export function forwardBackward(m: Machine, batch: MicroBatch, objective: Objective): ForwardBackwardResult {
  const result = computeGradient(m, batch, objective)
  accumulate(m, batch.tokenIds.length)
  return result
}

/** Leaves the batch's gradient in `plan.gradients`; on an error it is zero. */
export function computeGradient(m: Machine, batch: MicroBatch, objective: Objective): ForwardBackwardResult {
  checkBatch(m, batch)
  const t = batch.tokenIds.length
  const r = batch.targetRows.length
  if (r === 0) return { loss: 0, entropy: 0, logprobs: new Float32Array(0), clippedTokens: 0, maskedTokens: 0 }
  placeBatch(m, batch)
  const { refusal } = runJob(m, { kind: 'train', rows: t, targets: r, objective })
  if (refusal !== undefined) throw refused(m, refusal, t)
  const { train } = m.plan
  const sum = (at: number): number => m.f64.subarray(at / 8, at / 8 + r).reduce((a, b) => a + b, 0)
  const fates = m.i32.subarray(train.targetFates / 4, train.targetFates / 4 + r)
  return {
    loss: sum(train.targetLosses),
    entropy: sum(train.targetEntropies),
    logprobs: m.f32.slice(train.targetLogprobs / 4, train.targetLogprobs / 4 + r),
    clippedTokens: fates.filter((f) => f === 1).length,
    maskedTokens: fates.filter((f) => f === 2).length,
  }
}

/** Adds what is in `plan.gradients` and makes it zero. @param tokens of the micro-batch it is from. */
export function accumulate(m: Machine, tokens: number): void {
  const { refusal } = runJob(m, { kind: 'accumulate' })
  if (refusal !== undefined) throw refused(m, refusal, tokens)
}

function refused(m: Machine, refusal: Refusal, tokens: number): GyreError {
  if (refusal === 'range') return outOfRange()
  const [from, to] = m.plan.trainRegion
  m.f32.fill(0, from / 4, to / 4)
  return trainerError(
    'E_TRAINER_NONFINITE',
    `the loss or the gradient of a micro-batch of ${tokens} tokens is not finite; nothing applied`,
  )
}

/** Adds the sums of other cells, all or none. @throws GyreError E_TRAINER_BATCH, E_TRAINER_RANGE. */
export function addGradients(m: Machine, added: readonly GradientSums[]): void {
  const { count } = m.plan.layout
  const other = added.find((sums) => sums.length !== count + 1)
  if (other !== undefined) {
    throw trainerError('E_TRAINER_BATCH', `sums of ${other.length - 1} values came for ${count} parameters`)
  }
  const at = m.plan.sums / 8
  const bound = totalBound([m.i64[at + count] ?? 0n, ...added.map((sums) => sums[count] ?? 0n)])
  for (const sums of added) addVector(m, sums.subarray(0, count))
  m.i64[at + count] = bound
}

/** Through the room of a micro-step's gradient, which is zero between jobs, half of the sums at a time. */
function addVector(m: Machine, sums: GradientSums): void {
  const { gradients, layout } = m.plan
  const room = layout.count / 2
  for (let first = 0; first < layout.count; first += room) {
    m.i64.set(sums.subarray(first, first + room), gradients / 8)
    m.k.addSums(m.plan.sums + first * 8, gradients, room)
  }
  m.i64.fill(0n, gradients / 8, gradients / 8 + room)
}

/** @param step steps done before. @returns the norm before clipping. */
export function optimizerStep(m: Machine, params: OptimizerParams, step: number): number {
  return runJob(m, { kind: 'optimize', step: step + 1, params }).norm ?? NaN
}

function checkBatch(m: Machine, b: MicroBatch): void {
  const { capacity, shape, train } = m.plan
  const t = b.tokenIds.length
  const r = b.targetRows.length
  if (t > capacity.maxTrainTokens || r > train.maxTargets) {
    const limits = `at most ${capacity.maxTrainTokens} tokens and ${train.maxTargets} targets fit`
    throw trainerError('E_TRAINER_TOO_LONG', `a micro-batch has ${t} tokens and ${r} targets: ${limits}`)
  }
  const longest = b.positions.reduce((a, p) => Math.max(a, p), 0)
  if (longest >= capacity.maxContext) {
    throw trainerError(
      'E_TRAINER_TOO_LONG',
      `position ${longest} is beyond the context of ${capacity.maxContext} tokens`,
    )
  }
  const problem =
    lengthProblem(b, t, r) ??
    rangeProblem('tokenIds', b.tokenIds, 0, shape.vocabSize) ??
    rangeProblem('positions', b.positions, 0, capacity.maxContext) ??
    rangeProblem('targetRows', b.targetRows, 0, t) ??
    rangeProblem('targetIds', b.targetIds, 0, shape.vocabSize) ??
    subtreeProblem(b.subtreeEnd) ??
    finiteProblem('targetWeights', b.targetWeights) ??
    finiteProblem('targetAdvantages', b.targetAdvantages)
  if (problem !== undefined) throw trainerError('E_TRAINER_BATCH', `a micro-batch is malformed: ${problem}`)
}

function lengthProblem(b: MicroBatch, t: number, r: number): string | undefined {
  if (b.positions.length !== t || b.subtreeEnd.length !== t) return `positions and subtreeEnd must have ${t} entries`
  const perTarget = [b.targetIds, b.targetWeights, b.targetAdvantages, b.targetBehaviorLogprobs]
  return perTarget.every((x) => x.length === r) ? undefined : `every target array must have ${r} entries`
}

function rangeProblem(name: string, values: Int32Array, from: number, to: number): string | undefined {
  const bad = values.findIndex((v) => v < from || v >= to)
  return bad < 0 ? undefined : `${name}[${bad}] is ${values[bad]}, outside [${from}, ${to})`
}

function subtreeProblem(ends: Int32Array): string | undefined {
  const bad = ends.findIndex((end, i) => end <= i || end > ends.length)
  return bad < 0 ? undefined : `subtreeEnd[${bad}] is ${ends[bad]}: it must lie after its row and within the batch`
}

function finiteProblem(name: string, values: Float32Array): string | undefined {
  const bad = values.findIndex((v) => !Number.isFinite(v))
  return bad < 0 ? undefined : `${name}[${bad}] is ${values[bad]}`
}

function placeBatch(m: Machine, b: MicroBatch): void {
  const { train, shape } = m.plan
  const t = b.tokenIds.length
  m.i32.set(b.tokenIds, train.tokens / 4)
  m.i32.set(b.positions, train.positions / 4)
  m.i32.set(b.subtreeEnd, train.ends / 4)
  const padded = Math.ceil(t / TILE) * TILE
  m.i32.fill(0, train.ends / 4 + t, train.ends / 4 + padded)
  m.i32.set(b.targetRows, train.targetRows / 4)
  m.i32.set(b.targetIds, train.targetIds / 4)
  m.f32.set(b.targetWeights, train.targetWeights / 4)
  m.f32.set(b.targetAdvantages, train.targetAdvantages / 4)
  m.f32.set(b.targetBehaviorLogprobs, train.targetBehavior / 4)
  listVisibleTiles(m.i32.subarray(train.ends / 4, train.ends / 4 + padded), t, blockPositions(shape), TILE, {
    starts: m.i32.subarray(train.listStart / 4, train.listLength / 4),
    lengths: m.i32.subarray(train.listLength / 4, train.lists / 4),
    lists: m.i32.subarray(train.lists / 4),
  })
}
