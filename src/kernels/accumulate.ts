/**
 * @file From the gradient of one micro-step to the sum of many. All functions run on every thread.
 *
 * Why the sum does not depend on who computed what: each micro-step's gradient is computed from zero, so it is a
 * function of weights and batch alone. Each element is rounded to whole quanta of 2^-48 on its own, and the quanta
 * are added as integers modulo 2^64, which is a commutative group: any order, any grouping by cells, and any work
 * done again elsewhere give the same integers. They are the true sum because no sum can leave 63 bits: behind the
 * elements stands the sum of each micro-step's largest magnitude, which bounds the magnitude of every element and
 * is kept below 2^62. Whether that bound is passed does not depend on order either. The optimizer reads the sum
 * as float32, rounded once.
 */
import { type Machine, share } from './machine.ts'
import { NORM_BLOCK } from './plan.ts'

const QUANTA_PER_UNIT = 2 ** 48
/** Magnitudes add up to less. [quanta] */
const SUM_LIMIT = 2n ** 62n
/** Below it a cheaper rounding gives the same integers. */
const FAST_BELOW = 8

/** What kept a gradient out of the sum. */
export type Refusal = 'nonfinite' | 'range'

/** Adds `plan.gradients` to the sums, or not at all, and makes it zero. Every thread returns the same. */
export function accumulateGradient(m: Machine): Refusal | undefined {
  const { gradients, sums, layout } = m.plan
  const largest = largestOf(m)
  const boundAt = sums / 8 + layout.count
  const bound = Number.isFinite(largest) ? (m.i64[boundAt] ?? 0n) + quantaAbove(largest) : undefined
  const refusal: Refusal | undefined = bound === undefined ? 'nonfinite' : bound < SUM_LIMIT ? undefined : 'range'
  m.barrier()
  if (bound === undefined || refusal !== undefined) {
    discardGradient(m)
    return refusal
  }
  changeSums(m, () => {
    if (m.thread === 0) m.i64[boundAt] = bound
    const [from, to] = share(m, layout.count, 4)
    m.k.accumulate(gradients + from * 4, sums + from * 8, to - from, largest < FAST_BELOW ? 1 : 0)
  })
  return undefined
}

/** Zeroes what a micro-step has left in `plan.gradients`. */
export function discardGradient(m: Machine): void {
  const [from, to] = share(m, m.plan.layout.paddedCount, 4)
  m.f32.fill(0, m.plan.gradients / 4 + from, m.plan.gradients / 4 + to)
  m.barrier()
}

export function zeroSums(m: Machine): void {
  const [from, to] = share(m, m.plan.layout.count + 1)
  m.i64.fill(0n, m.plan.sums / 8 + from, m.plan.sums / 8 + to)
  m.barrier()
}

/** Moves the sums to `plan.gradients`, each with one rounding to float32, and makes them zero. */
export function roundSums(m: Machine): void {
  const { gradients, sums, layout } = m.plan
  const [from, to] = share(m, layout.count, 4)
  m.k.roundSums(sums + from * 8, gradients + from * 4, to - from)
  if (m.thread === 0) m.i64[sums / 8 + layout.count] = 0n
  m.barrier()
}

/** Runs `change` on every thread while readers outside can tell that the sums are not whole. */
function changeSums(m: Machine, change: () => void): void {
  const at = m.plan.sumsSequence / 4
  if (m.thread === 0) Atomics.add(m.i32, at, 1)
  m.barrier()
  change()
  m.barrier()
  if (m.thread === 0) Atomics.add(m.i32, at, 1)
}

/** Largest magnitude of the gradient, NaN when an element is. */
function largestOf(m: Machine): number {
  const { gradients, layout, partials } = m.plan
  const blocks = Math.ceil(layout.count / NORM_BLOCK)
  const [from, to] = share(m, blocks)
  for (let b = from; b < to; b++) {
    const size = Math.min(NORM_BLOCK, layout.count - b * NORM_BLOCK)
    m.f64[partials / 8 + b] = m.k.largestMagnitude(gradients + b * NORM_BLOCK * 4, size)
  }
  m.barrier()
  return m.f64.subarray(partials / 8, partials / 8 + blocks).reduce((a, b) => Math.max(a, b), 0)
}

/** The magnitude in quanta, rounded up. */
function quantaAbove(magnitude: number): bigint {
  return BigInt(Math.ceil(magnitude * QUANTA_PER_UNIT))
}
