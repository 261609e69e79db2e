/**
 * @file Sums of gradients in fixed point: 64-bit integers that count quanta of 2^-48. Addition of integers is
 * associative and commutative, so the sum has the same bits in any order and grouping. Counts are multiples of 4.
 */
import { promoteHigh } from './math'

const QUANTA: f64 = 281474976710656.0 // 2^48
const QUANTUM: f32 = 3.552713678800501e-15 // 2^-48

/** Adding it rounds |x| < 8 to whole quanta: in [16, 32) the last bit of a float64 is 2^-48. */
const SHIFT: f64 = 24.0

/** Largest magnitude; NaN when an element is. */
export function largestMagnitude(x: usize, n: i32): f32 {
  let top = f32x4.splat(0)
  const end = x + ((<usize>n) << 2)
  // `max` keeps a NaN, other than `pmax`.
  for (let p = x; p < end; p += 16) top = f32x4.max(top, f32x4.abs(v128.load(p)))
  const a = max<f32>(f32x4.extract_lane(top, 0), f32x4.extract_lane(top, 1))
  const b = max<f32>(f32x4.extract_lane(top, 2), f32x4.extract_lane(top, 3))
  return max<f32>(a, b)
}

/**
 * sums += x in quanta, rounded to the nearest (ties to even); then x = 0.
 * @param below8 1 when every |x| < 8. Both ways give the same integers; else |x| < 2^14 is needed.
 */
export function accumulate(x: usize, sums: usize, n: i32, below8: i32): void {
  const end = x + ((<usize>n) << 2)
  if (!below8) {
    for (let p = x; p < end; p += 4, sums += 8) {
      store<i64>(sums, load<i64>(sums) + <i64>nearest<f64>(<f64>load<f32>(p) * QUANTA))
      store<f32>(p, 0)
    }
    return
  }
  const shift = f64x2.splat(SHIFT)
  const zero = f32x4.splat(0)
  for (let p = x; p < end; p += 16, sums += 32) {
    const v = v128.load(p)
    const low = i64x2.sub(f64x2.add(f64x2.promote_low_f32x4(v), shift), shift)
    const high = i64x2.sub(f64x2.add(promoteHigh(v), shift), shift)
    v128.store(sums, i64x2.add(v128.load(sums), low))
    v128.store(sums, i64x2.add(v128.load(sums, 16), high), 16)
    v128.store(p, zero)
  }
}

/** x = sums as float32, with one rounding; then sums = 0. */
export function roundSums(sums: usize, x: usize, n: i32): void {
  const end = x + ((<usize>n) << 2)
  for (let p = x; p < end; p += 4, sums += 8) {
    // The integer is rounded to 24 bits; the scale is a power of two and rounds nothing.
    store<f32>(p, <f32>load<i64>(sums) * QUANTUM)
    store<i64>(sums, 0)
  }
}

/** x += y */
export function addSums(x: usize, y: usize, n: i32): void {
  for (let at: usize = 0; at < (<usize>n) << 3; at += 16) {
    v128.store(x + at, i64x2.add(v128.load(x + at), v128.load(y + at)))
  }
}
