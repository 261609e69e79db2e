/**
 * @file The gradient accumulator as it travels between cells, in fixed point: integers that count quanta of 2^-48.
 *
 * Each micro-step's float32 gradient is rounded to whole quanta on its own, and quanta are added as integers. So the
 * sum of a step has the same bits whatever cell computed which micro-step, in whatever order, and however often work
 * was done again; one rounding makes it float32 for the optimizer. A float32 of 2^-25 or more loses nothing.
 */
import { GyreError, invariant } from '../core/errors.ts'

/**
 * [P + 1] The P sums, then the sum of the largest magnitudes of the micro-steps. It bounds the magnitude of every
 * sum, and stays below 2^62, so no sum has overflowed.
 */
export type GradientSums = BigInt64Array

const QUANTA_PER_UNIT = 2 ** 48
const LIMIT = 2n ** 62n

/** The quanta of one micro-step's gradient. @throws GyreError E_TRAINER_NONFINITE, E_TRAINER_RANGE. */
export function sumsOf(gradient: Float32Array): GradientSums {
  const largest = gradient.reduce((a, g) => Math.max(a, Math.abs(g)), 0)
  if (!Number.isFinite(largest)) {
    throw new GyreError('the gradient of a micro-step is not finite; nothing applied', {
      boundary: 'trainer',
      code: 'E_TRAINER_NONFINITE',
    })
  }
  const sums = new BigInt64Array(gradient.length + 1)
  const bound = BigInt(Math.ceil(largest * QUANTA_PER_UNIT))
  if (bound >= LIMIT) throw outOfRange()
  gradient.forEach((g, i) => (sums[i] = BigInt(roundToEven(g * QUANTA_PER_UNIT))))
  sums[gradient.length] = bound
  return sums
}

/** Adds every vector to `into`, or none. @throws GyreError E_TRAINER_RANGE. */
export function addSums(into: GradientSums, added: readonly GradientSums[]): void {
  const last = into.length - 1
  invariant(
    added.every((sums) => sums.length === into.length),
    'sums of one model have one length',
  )
  const bound = totalBound([into, ...added].map((sums) => sums[last] ?? 0n))
  for (const sums of added) for (let i = 0; i < last; i++) into[i] = (into[i] ?? 0n) + (sums[i] ?? 0n)
  into[last] = bound
}

/** The last entry of added vectors from theirs. @throws GyreError E_TRAINER_RANGE when a sum could overflow. */
export function totalBound(bounds: readonly bigint[]): bigint {
  const total = bounds.reduce((a, b) => a + b, 0n)
  if (total >= LIMIT || bounds.some((b) => b < 0n)) throw outOfRange()
  return total
}

/** [P] the gradient, each element rounded once. */
export function gradientOf(sums: GradientSums): Float32Array {
  return Float32Array.from({ length: sums.length - 1 }, (_, i) => roundToFloat32(sums[i] ?? 0n) / QUANTA_PER_UNIT)
}

export function outOfRange(): GyreError {
  const message = `the gradients of a step add up to magnitudes of ${Number(LIMIT) / QUANTA_PER_UNIT} and more; nothing applied`
  return new GyreError(message, { boundary: 'trainer', code: 'E_TRAINER_RANGE' })
}

/** To the nearest integer, ties to the even one. */
function roundToEven(x: number): number {
  const low = Math.floor(x)
  const rest = x - low
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1
}

/** To the nearest float32, ties to even: not through float64, which would round twice. */
function roundToFloat32(quanta: bigint): number {
  const magnitude = quanta < 0n ? -quanta : quanta
  const excess = BigInt(Math.max(0, magnitude.toString(2).length - 53))
  // What is cut off only decides between nearest and tie, so one bit that says "something was there" keeps it.
  const kept = magnitude >> excess
  const sticky = kept << excess === magnitude ? kept : kept | 1n
  const value = Math.fround(Number(sticky) * 2 ** Number(excess))
  return quanta < 0n ? -value : value
}
