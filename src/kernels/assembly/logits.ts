/** @file What happens to one row of logits. V tokens, padded to a multiple of 8. */
import { exp4, maxLane, promoteHigh, sum4 } from './math'

/** ln of the sum of e^z, in f64: the one normalizer of the sampler and of the trainer. Sets the padding to -inf. */
export function logSumExp(z: usize, v: i32, padded: i32): f64 {
  for (let i = v; i < padded; i++) store<f32>(z + ((<usize>i) << 2), -Infinity)
  const end = z + ((<usize>padded) << 2)
  let top = v128.load(z)
  for (let p = z + 16; p < end; p += 16) top = f32x4.pmax(top, v128.load(p))
  const m = maxLane(top)
  const mm = f32x4.splat(m)
  let low = f64x2.splat(0)
  let high = low
  for (let p = z; p < end; p += 16) {
    const e = exp4(f32x4.sub(v128.load(p), mm))
    low = f64x2.add(low, f64x2.promote_low_f32x4(e))
    high = f64x2.add(high, promoteHigh(e))
  }
  return <f64>m + Math.log(sum4(low, high))
}

/** Entropy of the row in nats, in f64. */
export function entropy(z: usize, padded: i32, lse: f64): f64 {
  const l = f32x4.splat(<f32>lse)
  const floor = f32x4.splat(-1e30)
  const end = z + ((<usize>padded) << 2)
  let low = f64x2.splat(0)
  let high = low
  for (let p = z; p < end; p += 16) {
    const logp = f32x4.sub(f32x4.pmax(v128.load(p), floor), l)
    const term = f32x4.mul(exp4(logp), logp)
    low = f64x2.sub(low, f64x2.promote_low_f32x4(term))
    high = f64x2.sub(high, promoteHigh(term))
  }
  return sum4(low, high)
}

/**
 * Replaces logits by the gradient of `slope * logp[target] - bonus * entropy`:
 * slope (1[v = target] - p) + bonus p (logp + H).
 */
export function logitsGradient(z: usize, padded: i32, lse: f64, target: i32, slope: f32, bonus: f32, h: f32): void {
  const l = f32x4.splat(<f32>lse)
  const floor = f32x4.splat(-1e30)
  const s = f32x4.splat(slope)
  const b = f32x4.splat(bonus)
  const hh = f32x4.splat(h)
  const end = z + ((<usize>padded) << 2)
  for (let p = z; p < end; p += 16) {
    const logp = f32x4.sub(f32x4.pmax(v128.load(p), floor), l)
    v128.store(p, f32x4.mul(exp4(logp), f32x4.sub(f32x4.mul(b, f32x4.add(logp, hh)), s)))
  }
  const at = z + ((<usize>target) << 2)
  store<f32>(at, load<f32>(at) + slope)
}

/** The first id with the largest logit. */
export function argmax(z: usize, v: i32): i32 {
  let best = 0
  let top = load<f32>(z)
  for (let i = 1; i < v; i++) {
    const x = load<f32>(z + ((<usize>i) << 2))
    if (x > top) {
      top = x
      best = i
    }
  }
  return best
}

/** A draw from softmax(z / temperature) by inversion at u in [0, 1); ids in ascending order. Uses `scratch` [V] floats. */
export function draw(z: usize, v: i32, padded: i32, temperature: f32, u: f64, scratch: usize): i32 {
  const m = f32x4.splat(load<f32>(z + ((<usize>argmax(z, v)) << 2)))
  const t = f32x4.splat(temperature)
  const bytes = (<usize>padded) << 2
  let low = f64x2.splat(0)
  let high = low
  for (let c: usize = 0; c < bytes; c += 16) {
    const e = exp4(f32x4.div(f32x4.sub(v128.load(z + c), m), t))
    v128.store(scratch + c, e)
    low = f64x2.add(low, f64x2.promote_low_f32x4(e))
    high = f64x2.add(high, promoteHigh(e))
  }
  const goal = u * sum4(low, high)
  let sum: f64 = 0
  let last = 0
  for (let i = 0; i < v; i++) {
    const w = load<f32>(scratch + ((<usize>i) << 2))
    if (w == 0) continue
    sum += <f64>w
    last = i
    if (sum > goal) break
  }
  return last
}
