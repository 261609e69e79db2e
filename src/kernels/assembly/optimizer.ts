/** @file Element-wise passes over flat parameter vectors. Counts are multiples of 4. */
import { promoteHigh, sum4 } from './math'

/** Sum of squares in f64. */
export function sumSquares(x: usize, n: i32): f64 {
  let low = f64x2.splat(0)
  let high = low
  const end = x + ((<usize>n) << 2)
  for (let p = x; p < end; p += 16) {
    const v = v128.load(p)
    const a = f64x2.promote_low_f32x4(v)
    const b = promoteHigh(v)
    low = f64x2.add(low, f64x2.mul(a, a))
    high = f64x2.add(high, f64x2.mul(b, b))
  }
  return sum4(low, high)
}

/**
 * AdamW (arXiv 1711.05101) with decoupled weight decay; the gradient is scaled by `scale` first and zeroed after.
 * `rate` is the learning rate over the first moment's bias correction, `correction` the square root of the second's
 * inverse, `decay` learning rate times weight decay.
 */
export function adamw(
  w: usize,
  g: usize,
  m: usize,
  v: usize,
  n: i32,
  scale: f32,
  beta1: f32,
  beta2: f32,
  rate: f32,
  correction: f32,
  epsilon: f32,
  decay: f32,
): void {
  const s = f32x4.splat(scale)
  const b1 = f32x4.splat(beta1)
  const c1 = f32x4.splat(1 - beta1)
  const b2 = f32x4.splat(beta2)
  const c2 = f32x4.splat(1 - beta2)
  const r = f32x4.splat(rate)
  const k = f32x4.splat(correction)
  const e = f32x4.splat(epsilon)
  const keep = f32x4.splat(1 - decay)
  const zero = f32x4.splat(0)
  for (let at: usize = 0; at < (<usize>n) << 2; at += 16) {
    const x = f32x4.mul(v128.load(g + at), s)
    v128.store(g + at, zero)
    const m1 = f32x4.add(f32x4.mul(b1, v128.load(m + at)), f32x4.mul(c1, x))
    v128.store(m + at, m1)
    const v1 = f32x4.add(f32x4.mul(b2, v128.load(v + at)), f32x4.mul(c2, f32x4.mul(x, x)))
    v128.store(v + at, v1)
    const step = f32x4.div(f32x4.mul(r, m1), f32x4.add(f32x4.mul(f32x4.sqrt(v1), k), e))
    v128.store(w + at, f32x4.sub(f32x4.mul(v128.load(w + at), keep), step))
  }
}
