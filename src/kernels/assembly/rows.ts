/** @file Row-wise parts of the network: embedding, RMSNorm, rotary positions, SwiGLU. d is a multiple of 8. */
import { exp4, promoteHigh, sum4 } from './math'

/** out[i] = table[ids[i]] */
export function embedRows(ids: usize, rows: i32, table: usize, d: i32, out: usize): void {
  const bytes = (<usize>d) << 2
  for (let i = 0; i < rows; i++) {
    memory.copy(out + <usize>i * bytes, table + <usize>load<i32>(ids + ((<usize>i) << 2)) * bytes, bytes)
  }
}

/** out = x / rms(x) * gain (arXiv 1910.07467); writes 1 / rms to `inverse`, one f32 a row. */
export function normRows(x: usize, rows: i32, d: i32, gain: usize, epsilon: f64, out: usize, inverse: usize): void {
  const bytes = (<usize>d) << 2
  for (let i = 0; i < rows; i++) {
    let low = f64x2.splat(0)
    let high = low
    for (let c: usize = 0; c < bytes; c += 16) {
      const v = v128.load(x + c)
      const a = f64x2.promote_low_f32x4(v)
      const b = promoteHigh(v)
      low = f64x2.add(low, f64x2.mul(a, a))
      high = f64x2.add(high, f64x2.mul(b, b))
    }
    const scale = <f32>(1.0 / sqrt<f64>(sum4(low, high) / <f64>d + epsilon))
    store<f32>(inverse + ((<usize>i) << 2), scale)
    const s = f32x4.splat(scale)
    for (let c: usize = 0; c < bytes; c += 16) {
      v128.store(out + c, f32x4.mul(f32x4.mul(v128.load(x + c), s), v128.load(gain + c)))
    }
    x += bytes
    out += bytes
  }
}

/** dx (+)= gradient of normRows at x for dy; replaces dx unless `add`. */
export function normBackward(
  x: usize,
  dy: usize,
  rows: i32,
  d: i32,
  gain: usize,
  inverse: usize,
  dx: usize,
  add: i32,
): void {
  const bytes = (<usize>d) << 2
  for (let i = 0; i < rows; i++) {
    let low = f64x2.splat(0)
    let high = low
    for (let c: usize = 0; c < bytes; c += 16) {
      const v = v128.load(x + c)
      const g = f32x4.mul(v128.load(dy + c), v128.load(gain + c))
      low = f64x2.add(low, f64x2.mul(f64x2.promote_low_f32x4(v), f64x2.promote_low_f32x4(g)))
      high = f64x2.add(high, f64x2.mul(promoteHigh(v), promoteHigh(g)))
    }
    const scale = load<f32>(inverse + ((<usize>i) << 2))
    const wide = <f64>scale
    const s = f32x4.splat(scale)
    const m = f32x4.splat(<f32>((sum4(low, high) * wide * wide * wide) / <f64>d))
    for (let c: usize = 0; c < bytes; c += 16) {
      const g = f32x4.mul(v128.load(dy + c), v128.load(gain + c))
      let y = f32x4.sub(f32x4.mul(g, s), f32x4.mul(v128.load(x + c), m))
      if (add) y = f32x4.add(v128.load(dx + c), y)
      v128.store(dx + c, y)
    }
    x += bytes
    dy += bytes
    dx += bytes
  }
}

/** dgain[c] += sum over rows of dy x / rms, for columns [from, to), multiples of 4. */
export function normGain(
  x: usize,
  dy: usize,
  rows: i32,
  d: i32,
  inverse: usize,
  dgain: usize,
  from: i32,
  to: i32,
): void {
  const bytes = (<usize>d) << 2
  for (let c = (<usize>from) << 2; c < (<usize>to) << 2; c += 16) {
    let s = v128.load(dgain + c)
    let at = c
    for (let i = 0; i < rows; i++) {
      const scaled = f32x4.mul(v128.load(x + at), v128.load_splat<f32>(inverse + ((<usize>i) << 2)))
      s = f32x4.add(s, f32x4.mul(scaled, v128.load(dy + at)))
      at += bytes
    }
    v128.store(dgain + c, s)
  }
}

/**
 * Rotates the query and key heads of rows [heads + kvHeads][hd] in place by their positions (rotate-half
 * convention) and scales the queries. `table` is [positions][hd/2] pairs of cos rows and sin rows:
 * cos[hd/2] then sin[hd/2]. `sign` -1 undoes the rotation (the gradient).
 */
export function ropeRows(
  x: usize,
  ld: usize,
  rows: i32,
  positions: usize,
  table: usize,
  heads: i32,
  kvHeads: i32,
  hd: i32,
  scale: f32,
  sign: f32,
): void {
  const half = (<usize>hd) << 1
  const s = f32x4.splat(sign)
  const one = f32x4.splat(1)
  for (let i = 0; i < rows; i++) {
    const cosine = table + <usize>load<i32>(positions + ((<usize>i) << 2)) * ((<usize>hd) << 2)
    let p = x
    for (let h = 0; h < heads + kvHeads; h++) {
      const m = h < heads ? f32x4.splat(scale) : one
      for (let c: usize = 0; c < half; c += 16) {
        const co = v128.load(cosine + c)
        const si = f32x4.mul(v128.load(cosine + half + c), s)
        const a = v128.load(p + c)
        const b = v128.load(p + half + c)
        v128.store(p + c, f32x4.mul(f32x4.sub(f32x4.mul(a, co), f32x4.mul(b, si)), m))
        v128.store(p + half + c, f32x4.mul(f32x4.add(f32x4.mul(b, co), f32x4.mul(a, si)), m))
      }
      p += (<usize>hd) << 2
    }
    x += ld
  }
}

/** out[., c] = silu(gate) up for columns [from, to) of rows [gate[ff] up[ff]] (arXiv 2002.05202). */
export function swigluRows(gu: usize, rows: i32, ff: i32, out: usize, from: i32, to: i32): void {
  const bytes = (<usize>ff) << 2
  const one = f32x4.splat(1)
  for (let i = 0; i < rows; i++) {
    for (let c = (<usize>from) << 2; c < (<usize>to) << 2; c += 16) {
      const g = v128.load(gu + c)
      const sigma = f32x4.div(one, f32x4.add(one, exp4(f32x4.neg(g))))
      v128.store(out + c, f32x4.mul(f32x4.mul(g, sigma), v128.load(gu + bytes + c)))
    }
    gu += bytes << 1
    out += bytes
  }
}

/** dgu = gradient of swigluRows for dact [rows][ff]; also writes the activations again to `act`. */
export function swigluBackward(gu: usize, dact: usize, rows: i32, ff: i32, dgu: usize, act: usize): void {
  const bytes = (<usize>ff) << 2
  const one = f32x4.splat(1)
  for (let i = 0; i < rows; i++) {
    for (let c: usize = 0; c < bytes; c += 16) {
      const g = v128.load(gu + c)
      const u = v128.load(gu + bytes + c)
      const dy = v128.load(dact + c)
      const sigma = f32x4.div(one, f32x4.add(one, exp4(f32x4.neg(g))))
      const silu = f32x4.mul(g, sigma)
      v128.store(act + c, f32x4.mul(silu, u))
      const slope = f32x4.mul(sigma, f32x4.add(one, f32x4.mul(g, f32x4.sub(one, sigma))))
      v128.store(dgu + c, f32x4.mul(f32x4.mul(dy, u), slope))
      v128.store(dgu + bytes + c, f32x4.mul(dy, silu))
    }
    gu += bytes << 1
    dgu += bytes << 1
    dact += bytes
    act += bytes
  }
}

/** out[ids[i]][c] += x[i][c] for columns [from, to), in the order of i. */
export function scatterAdd(x: usize, ids: usize, rows: i32, d: i32, out: usize, from: i32, to: i32): void {
  const bytes = (<usize>d) << 2
  for (let i = 0; i < rows; i++) {
    const target = out + <usize>load<i32>(ids + ((<usize>i) << 2)) * bytes
    for (let c = (<usize>from) << 2; c < (<usize>to) << 2; c += 16) {
      v128.store(target + c, f32x4.add(v128.load(target + c), v128.load(x + c)))
    }
    x += bytes
  }
}

/** Copies rows of `columns` floats between strides. */
export function copyRows(x: usize, ldx: usize, out: usize, ldo: usize, rows: i32, columns: i32): void {
  for (let i = 0; i < rows; i++) {
    for (let c: usize = 0; c < <usize>columns << 2; c += 16) v128.store(out + c, v128.load(x + c))
    x += ldx
    out += ldo
  }
}
