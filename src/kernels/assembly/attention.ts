/**
 * @file Attention over keys packed in tiles of 8: [tile][hd][8]. Scores of a block are tile-major: [tile][R][8].
 *
 * A block is `count` consecutive positions x `group` query heads that share one key head: R = count x group rows,
 * head-major. `list` names the tiles any of them may see, ascending, as tile * 2 + (1 when some row may not see
 * some key of it). Row i sees key j when j <= i and i < ends[j]. Without `ends` the tiles are pages in any order that
 * hold the keys of consecutive positions, and row i sees key j when j <= i. Keys that are not visible weigh exactly
 * 0, so a block has the same bits wherever its invisible tiles are.
 */
import { STORE, tile1, tile1x4, tile2x2, tile4 } from './gemm'
import { exp4, maxLane, promoteHigh } from './math'

/** Keys of PIECE tiles stay in the first-level cache while they are multiplied. */
const PIECE: i32 = 32

/** Packs columns [hd] of rows [first, first + rows) of x into tiles. */
export function packTiles(x: usize, ld: usize, first: i32, rows: i32, hd: i32, tiles: usize): void {
  for (let i = first; i < first + rows; i++) {
    packOne(x + <usize>i * ld, i, hd, tiles)
  }
}

// @ts-ignore: decorator
@inline
function packOne(row: usize, i: i32, hd: i32, tiles: usize): void {
  let x = row
  let target = tiles + <usize>(i >> 3) * (<usize>hd << 5) + (<usize>(i & 7) << 2)
  for (let c = 0; c < hd; c++) {
    store<f32>(target, load<f32>(x))
    x += 4
    target += 32
  }
}

/** Puts one key and one value at position `i` of a cache: keys in tiles, values as rows. */
export function storeKeyValue(k: usize, v: usize, i: i32, hd: i32, tiles: usize, values: usize): void {
  packOne(k, i, hd, tiles)
  memory.copy(values + <usize>i * (<usize>hd << 2), v, <usize>hd << 2)
}

/** s[tile][R][8] = q k^T for the listed tiles; q is [R][hd]. */
function scoreTiles(q: usize, r: i32, hd: i32, tiles: usize, list: usize, n: i32, s: usize): void {
  const size = <usize>hd << 5
  const row = <usize>hd << 2
  const quads = r & ~3
  const out = <usize>r << 5
  for (let t = 0; t < n && quads > 0; t++) {
    const kp = tiles + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * size
    let sp = s + <usize>t * out
    let qp = q
    for (let i = 0; i < quads; i += 4) {
      tile4(qp, row, kp, hd, sp, 32, STORE)
      qp += row << 2
      sp += 128
    }
  }
  let i = quads
  for (; i + 2 <= r; i += 2) {
    const qp = q + <usize>i * row
    let sp = s + (<usize>i << 5)
    let at = list
    let t = 0
    for (; t + 2 <= n; t += 2) {
      const k0 = tiles + <usize>(load<i32>(at) >> 1) * size
      const k1 = tiles + <usize>(load<i32>(at, 4) >> 1) * size
      tile2x2(qp, row, k0, k1, hd, sp, sp + out, 32, STORE)
      at += 8
      sp += out << 1
    }
    if (t < n) {
      const k0 = tiles + <usize>(load<i32>(at) >> 1) * size
      tile1(qp, k0, hd, sp, STORE)
      tile1(qp + row, k0, hd, sp + 32, STORE)
    }
  }
  for (; i < r; i++) {
    const qp = q + <usize>i * row
    let sp = s + (<usize>i << 5)
    let at = list
    let t = 0
    for (; t + 4 <= n; t += 4) {
      const k0 = tiles + <usize>(load<i32>(at) >> 1) * size
      const k1 = tiles + <usize>(load<i32>(at, 4) >> 1) * size
      const k2 = tiles + <usize>(load<i32>(at, 8) >> 1) * size
      const k3 = tiles + <usize>(load<i32>(at, 12) >> 1) * size
      tile1x4(qp, k0, k1, k2, k3, hd, sp, sp + out, sp + 2 * out, sp + 3 * out, STORE)
      at += 16
      sp += out << 2
    }
    for (; t < n; t++) {
      tile1(qp, tiles + <usize>(load<i32>(at) >> 1) * size, hd, sp, STORE)
      at += 4
      sp += out
    }
  }
}

/** Sets the scores of invisible keys to -inf, in the marked tiles and in the last `tail` ones. */
function maskTiles(
  s: usize, count: i32, group: i32, list: usize, n: i32, tail: i32, ends: usize, first: i32,
): void {
  const hidden = f32x4.splat(-Infinity)
  const lanes = i32x4(0, 1, 2, 3)
  const far = i32x4.splat(i32.MAX_VALUE)
  for (let t = 0; t < n; t++) {
    const entry = load<i32>(list + (<usize>t << 2))
    let sp = s + (<usize>(t * count * group) << 5)
    if ((entry & 1) == 0 && t < n - tail) continue
    const j = (ends ? entry >> 1 : t) << 3
    const low = i32x4.add(i32x4.splat(j), lanes)
    const high = i32x4.add(low, i32x4.splat(4))
    const endLow = ends ? v128.load(ends + (<usize>j << 2)) : far
    const endHigh = ends ? v128.load(ends + (<usize>j << 2), 16) : far
    for (let h = 0; h < group; h++) {
      for (let i = first; i < first + count; i++) {
        const at = i32x4.splat(i)
        const a = v128.and(i32x4.le_s(low, at), i32x4.lt_s(at, endLow))
        const b = v128.and(i32x4.le_s(high, at), i32x4.lt_s(at, endHigh))
        v128.store(sp, v128.bitselect(v128.load(sp), hidden, a))
        v128.store(sp, v128.bitselect(v128.load(sp, 16), hidden, b), 16)
        sp += 32
      }
    }
  }
}

/** out[R][hd] = p v over the listed tiles, p tile-major, v rows of `ldv` bytes; sequential over keys. */
function weighRows(p: usize, r: i32, v: usize, ldv: usize, hd: i32, list: usize, n: i32, out: usize): void {
  const row = <usize>hd << 2
  const tile = <usize>r << 5
  memory.fill(out, 0, <usize>r * row)
  for (let start = 0; start < n; start += PIECE) {
    const stop = min<i32>(n, start + PIECE)
    let i = 0
    for (; i + 4 <= r; i += 4) {
      for (let c: usize = 0; c < row; c += 32) {
        weigh4(p + (<usize>i << 5), tile, v + c, ldv, list, start, stop, out + <usize>i * row + c, row)
      }
    }
    for (; i + 2 <= r; i += 2) {
      let c: usize = 0
      for (; c + 64 <= row; c += 64) {
        weigh2(p + (<usize>i << 5), tile, v + c, ldv, list, start, stop, out + <usize>i * row + c, row)
      }
      if (c < row) {
        weigh1(p + (<usize>i << 5), tile, v + c, ldv, list, start, stop, out + <usize>i * row + c)
        weigh1(p + (<usize>(i + 1) << 5), tile, v + c, ldv, list, start, stop, out + <usize>(i + 1) * row + c)
      }
    }
    for (; i < r; i++) {
      let c: usize = 0
      for (; c + 128 <= row; c += 128) {
        weigh1x4(p + (<usize>i << 5), tile, v + c, ldv, list, start, stop, out + <usize>i * row + c)
      }
      for (; c < row; c += 32) {
        weigh1(p + (<usize>i << 5), tile, v + c, ldv, list, start, stop, out + <usize>i * row + c)
      }
    }
  }
}

// @ts-ignore: decorator
@inline
function weigh4(p: usize, tile: usize, v: usize, ldv: usize, list: usize, start: i32, stop: i32, c: usize, ldc: usize): void {
  const c1 = c + ldc
  const c2 = c1 + ldc
  const c3 = c2 + ldc
  let s00 = v128.load(c)
  let s01 = v128.load(c, 16)
  let s10 = v128.load(c1)
  let s11 = v128.load(c1, 16)
  let s20 = v128.load(c2)
  let s21 = v128.load(c2, 16)
  let s30 = v128.load(c3)
  let s31 = v128.load(c3, 16)
  let pp = p + <usize>start * tile
  for (let t = start; t < stop; t++) {
    let vp = v + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * (ldv << 3)
    const end = pp + 32
    while (pp < end) {
      const b0 = v128.load(vp)
      const b1 = v128.load(vp, 16)
      vp += ldv
      let x = v128.load_splat<f32>(pp)
      s00 = f32x4.add(s00, f32x4.mul(x, b0))
      s01 = f32x4.add(s01, f32x4.mul(x, b1))
      x = v128.load_splat<f32>(pp, 32)
      s10 = f32x4.add(s10, f32x4.mul(x, b0))
      s11 = f32x4.add(s11, f32x4.mul(x, b1))
      x = v128.load_splat<f32>(pp, 64)
      s20 = f32x4.add(s20, f32x4.mul(x, b0))
      s21 = f32x4.add(s21, f32x4.mul(x, b1))
      x = v128.load_splat<f32>(pp, 96)
      s30 = f32x4.add(s30, f32x4.mul(x, b0))
      s31 = f32x4.add(s31, f32x4.mul(x, b1))
      pp += 4
    }
    pp += tile - 32
  }
  v128.store(c, s00)
  v128.store(c, s01, 16)
  v128.store(c1, s10)
  v128.store(c1, s11, 16)
  v128.store(c2, s20)
  v128.store(c2, s21, 16)
  v128.store(c3, s30)
  v128.store(c3, s31, 16)
}

// @ts-ignore: decorator
@inline
function weigh2(p: usize, tile: usize, v: usize, ldv: usize, list: usize, start: i32, stop: i32, c: usize, ldc: usize): void {
  const c1 = c + ldc
  let s00 = v128.load(c)
  let s01 = v128.load(c, 16)
  let s02 = v128.load(c, 32)
  let s03 = v128.load(c, 48)
  let s10 = v128.load(c1)
  let s11 = v128.load(c1, 16)
  let s12 = v128.load(c1, 32)
  let s13 = v128.load(c1, 48)
  let pp = p + <usize>start * tile
  for (let t = start; t < stop; t++) {
    let vp = v + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * (ldv << 3)
    for (let key: usize = 0; key < 32; key += 4) {
      const v0 = v128.load(vp)
      const v1 = v128.load(vp, 16)
      const v2 = v128.load(vp, 32)
      const v3 = v128.load(vp, 48)
      let x = v128.load_splat<f32>(pp + key)
      s00 = f32x4.add(s00, f32x4.mul(x, v0))
      s01 = f32x4.add(s01, f32x4.mul(x, v1))
      s02 = f32x4.add(s02, f32x4.mul(x, v2))
      s03 = f32x4.add(s03, f32x4.mul(x, v3))
      x = v128.load_splat<f32>(pp + key, 32)
      s10 = f32x4.add(s10, f32x4.mul(x, v0))
      s11 = f32x4.add(s11, f32x4.mul(x, v1))
      s12 = f32x4.add(s12, f32x4.mul(x, v2))
      s13 = f32x4.add(s13, f32x4.mul(x, v3))
      vp += ldv
    }
    pp += tile
  }
  v128.store(c, s00)
  v128.store(c, s01, 16)
  v128.store(c, s02, 32)
  v128.store(c, s03, 48)
  v128.store(c1, s10)
  v128.store(c1, s11, 16)
  v128.store(c1, s12, 32)
  v128.store(c1, s13, 48)
}

// @ts-ignore: decorator
@inline
function weigh1x4(p: usize, tile: usize, v: usize, ldv: usize, list: usize, start: i32, stop: i32, c: usize): void {
  let s0 = v128.load(c)
  let s1 = v128.load(c, 16)
  let s2 = v128.load(c, 32)
  let s3 = v128.load(c, 48)
  let s4 = v128.load(c, 64)
  let s5 = v128.load(c, 80)
  let s6 = v128.load(c, 96)
  let s7 = v128.load(c, 112)
  let pp = p + <usize>start * tile
  for (let t = start; t < stop; t++) {
    let vp = v + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * (ldv << 3)
    for (let key: usize = 0; key < 32; key += 4) {
      const x = v128.load_splat<f32>(pp + key)
      s0 = f32x4.add(s0, f32x4.mul(x, v128.load(vp)))
      s1 = f32x4.add(s1, f32x4.mul(x, v128.load(vp, 16)))
      s2 = f32x4.add(s2, f32x4.mul(x, v128.load(vp, 32)))
      s3 = f32x4.add(s3, f32x4.mul(x, v128.load(vp, 48)))
      s4 = f32x4.add(s4, f32x4.mul(x, v128.load(vp, 64)))
      s5 = f32x4.add(s5, f32x4.mul(x, v128.load(vp, 80)))
      s6 = f32x4.add(s6, f32x4.mul(x, v128.load(vp, 96)))
      s7 = f32x4.add(s7, f32x4.mul(x, v128.load(vp, 112)))
      vp += ldv
    }
    pp += tile
  }
  v128.store(c, s0)
  v128.store(c, s1, 16)
  v128.store(c, s2, 32)
  v128.store(c, s3, 48)
  v128.store(c, s4, 64)
  v128.store(c, s5, 80)
  v128.store(c, s6, 96)
  v128.store(c, s7, 112)
}

// @ts-ignore: decorator
@inline
function weigh1(p: usize, tile: usize, v: usize, ldv: usize, list: usize, start: i32, stop: i32, c: usize): void {
  let s0 = v128.load(c)
  let s1 = v128.load(c, 16)
  let pp = p + <usize>start * tile
  for (let t = start; t < stop; t++) {
    let vp = v + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * (ldv << 3)
    for (let key: usize = 0; key < 32; key += 4) {
      const x = v128.load_splat<f32>(pp + key)
      s0 = f32x4.add(s0, f32x4.mul(x, v128.load(vp)))
      s1 = f32x4.add(s1, f32x4.mul(x, v128.load(vp, 16)))
      vp += ldv
    }
    pp += tile
  }
  v128.store(c, s0)
  v128.store(c, s1, 16)
}

/** Gathers the block's rows of q, head-major, into [R][hd]. */
function gather(q: usize, ldq: usize, count: i32, group: i32, hd: i32, out: usize): void {
  const bytes = <usize>hd << 2
  for (let h = 0; h < group; h++) {
    for (let i = 0; i < count; i++) {
      memory.copy(out, q + <usize>i * ldq + <usize>h * bytes, bytes)
      out += bytes
    }
  }
}

/** Adds the four lanes of x to lane 0 of a f64 pair and those of y to lane 1, in order. */
// @ts-ignore: decorator
@inline
function addPairs(sums: v128, x: v128, y: v128): v128 {
  const low = i32x4.shuffle(x, y, 0, 4, 1, 5)
  const high = i32x4.shuffle(x, y, 2, 6, 3, 7)
  const a = f64x2.add(sums, f64x2.promote_low_f32x4(low))
  const b = f64x2.add(a, promoteHigh(low))
  const c = f64x2.add(b, f64x2.promote_low_f32x4(high))
  return f64x2.add(c, promoteHigh(high))
}

/**
 * out = softmax(q k^T, visible) v for one block. q is scaled already. `q` and `out` point at the block's first
 * position and first head. Writes ln of each row's denominator plus maximum to lse[count][ldl] when given.
 * `scratch`: R x (2 hd + 8) + R x 8 x n floats.
 */
export function attend(
  q: usize, ldq: usize, count: i32, group: i32, hd: i32, kTiles: usize, v: usize, ldv: usize,
  list: usize, n: i32, tail: i32, ends: usize, first: i32, scratch: usize, out: usize, ldo: usize, lse: usize, ldl: usize,
): void {
  const r = count * group
  const row = <usize>hd << 2
  const tops = scratch
  const sums = tops + (<usize>r << 4)
  const qb = sums + (<usize>r << 4)
  const ob = qb + <usize>r * row
  const s = ob + <usize>r * row
  gather(q, ldq, count, group, hd, qb)
  scoreTiles(qb, r, hd, kTiles, list, n, s)
  maskTiles(s, count, group, list, n, tail, ends, first)

  for (let i = 0; i < r; i++) {
    v128.store(tops + (<usize>i << 4), f32x4.splat(-Infinity))
    store<f64>(sums + (<usize>i << 3), 0)
  }
  let sp = s
  for (let t = 0; t < n; t++) {
    let tp = tops
    for (let i = 0; i < r; i++) {
      v128.store(tp, f32x4.pmax(v128.load(tp), f32x4.pmax(v128.load(sp), v128.load(sp, 16))))
      tp += 16
      sp += 32
    }
  }
  for (let i = 0; i < r; i++) {
    const at = tops + (<usize>i << 4)
    v128.store(at, f32x4.splat(maxLane(v128.load(at))))
  }
  sp = s
  for (let t = 0; t < n; t++) {
    let tp = tops
    let up = sums
    let i = 0
    for (; i + 2 <= r; i += 2) {
      const m0 = v128.load(tp)
      const m1 = v128.load(tp, 16)
      const a0 = exp4(f32x4.sub(v128.load(sp), m0))
      const b0 = exp4(f32x4.sub(v128.load(sp, 16), m0))
      const a1 = exp4(f32x4.sub(v128.load(sp, 32), m1))
      const b1 = exp4(f32x4.sub(v128.load(sp, 48), m1))
      v128.store(sp, a0)
      v128.store(sp, b0, 16)
      v128.store(sp, a1, 32)
      v128.store(sp, b1, 48)
      v128.store(up, addPairs(addPairs(v128.load(up), a0, a1), b0, b1))
      tp += 32
      up += 16
      sp += 64
    }
    if (i < r) {
      const m = v128.load(tp)
      const a = exp4(f32x4.sub(v128.load(sp), m))
      const b = exp4(f32x4.sub(v128.load(sp, 16), m))
      v128.store(sp, a)
      v128.store(sp, b, 16)
      store<f64>(up, f64x2.extract_lane(addPairs(addPairs(v128.load(up), a, a), b, b), 0))
      sp += 32
    }
  }
  weighRows(s, r, v, ldv, hd, list, n, ob)
  for (let h = 0; h < group; h++) {
    for (let i = 0; i < count; i++) {
      const at = h * count + i
      const sum = load<f64>(sums + (<usize>at << 3))
      const scale = f32x4.splat(<f32>(1.0 / sum))
      const from = ob + <usize>at * row
      const to = out + <usize>i * ldo + <usize>h * row
      for (let c: usize = 0; c < row; c += 16) v128.store(to + c, f32x4.mul(v128.load(from + c), scale))
      if (lse) {
        const top = <f64>load<f32>(tops + (<usize>at << 4))
        store<f32>(lse + <usize>i * ldl + (<usize>h << 2), <f32>(top + Math.log(sum)))
      }
    }
  }
}

/** out[i][h] = sum over hd of a b, per head: the softmax gradient's inner product. */
export function rowDots(a: usize, b: usize, rows: i32, heads: i32, hd: i32, out: usize): void {
  for (let i = 0; i < rows * heads; i++) {
    let s = f32x4.splat(0)
    for (let c: usize = 0; c < <usize>hd << 2; c += 16) s = f32x4.add(s, f32x4.mul(v128.load(a + c), v128.load(b + c)))
    store<f32>(
      out,
      f32x4.extract_lane(s, 0) + f32x4.extract_lane(s, 1) + (f32x4.extract_lane(s, 2) + f32x4.extract_lane(s, 3)),
    )
    a += <usize>hd << 2
    b += <usize>hd << 2
    out += 4
  }
}

/** out rows of the listed tiles += s^T q: s tile-major [n][R][8], q [R][hd], out rows of `ldo` bytes. */
function spreadTiles(s: usize, r: i32, q: usize, hd: i32, list: usize, n: i32, out: usize, ldo: usize): void {
  const row = <usize>hd << 2
  for (let t = 0; t < n; t++) {
    const to = out + <usize>(load<i32>(list + (<usize>t << 2)) >> 1) * (ldo << 3)
    for (let half: usize = 0; half < 2; half++) {
      for (let c: usize = 0; c < row; c += 32) {
        spread4(s + (half << 4), r, q + c, row, to + (half << 2) * ldo + c, ldo)
      }
    }
    s += <usize>r << 5
  }
}

// @ts-ignore: decorator
@inline
function spread4(from: usize, r: i32, rows: usize, ldq: usize, c: usize, ldc: usize): void {
  let s = from
  let q = rows
  const c1 = c + ldc
  const c2 = c1 + ldc
  const c3 = c2 + ldc
  let s00 = v128.load(c)
  let s01 = v128.load(c, 16)
  let s10 = v128.load(c1)
  let s11 = v128.load(c1, 16)
  let s20 = v128.load(c2)
  let s21 = v128.load(c2, 16)
  let s30 = v128.load(c3)
  let s31 = v128.load(c3, 16)
  const end = s + (<usize>r << 5)
  while (s < end) {
    const b0 = v128.load(q)
    const b1 = v128.load(q, 16)
    let x = v128.load_splat<f32>(s, 0)
    s00 = f32x4.add(s00, f32x4.mul(x, b0))
    s01 = f32x4.add(s01, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(s, 4)
    s10 = f32x4.add(s10, f32x4.mul(x, b0))
    s11 = f32x4.add(s11, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(s, 8)
    s20 = f32x4.add(s20, f32x4.mul(x, b0))
    s21 = f32x4.add(s21, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(s, 12)
    s30 = f32x4.add(s30, f32x4.mul(x, b0))
    s31 = f32x4.add(s31, f32x4.mul(x, b1))
    q += ldq
    s += 32
  }
  v128.store(c, s00)
  v128.store(c, s01, 16)
  v128.store(c1, s10)
  v128.store(c1, s11, 16)
  v128.store(c2, s20)
  v128.store(c2, s21, 16)
  v128.store(c3, s30)
  v128.store(c3, s31, 16)
}

/**
 * Gradient of `attend` for one block: writes dq and adds to the rows of dk and dv.
 * `dout`, `delta` (rowDots of out and dout) and `lse` point at the block's first position and head.
 * `vTiles` holds the values packed as keys are. `scratch`: 3 R x hd + 2 x 8 R x n floats.
 */
export function attendBackward(
  q: usize, ldq: usize, dout: usize, ldo: usize, count: i32, group: i32, hd: i32,
  kTiles: usize, vTiles: usize, k: usize, ldk: usize, list: usize, n: i32, ends: usize, first: i32, scratch: usize,
  lse: usize, delta: usize, ldl: usize, dq: usize, lddq: usize, dk: usize, dv: usize, ldd: usize,
): void {
  const r = count * group
  const row = <usize>hd << 2
  const qb = scratch
  const ob = qb + <usize>r * row
  const gb = ob + <usize>r * row
  const p = gb + <usize>r * row
  const ds = p + (<usize>(r * n) << 5)
  gather(q, ldq, count, group, hd, qb)
  gather(dout, ldo, count, group, hd, ob)
  scoreTiles(qb, r, hd, kTiles, list, n, p)
  maskTiles(p, count, group, list, n, 0, ends, first)
  scoreTiles(ob, r, hd, vTiles, list, n, ds)
  let pp = p
  let dp = ds
  for (let t = 0; t < n; t++) {
    for (let h = 0; h < group; h++) {
      for (let i = 0; i < count; i++) {
        const at = <usize>i * ldl + (<usize>h << 2)
        const l = v128.load_splat<f32>(lse + at)
        const d = v128.load_splat<f32>(delta + at)
        const a = exp4(f32x4.sub(v128.load(pp), l))
        const b = exp4(f32x4.sub(v128.load(pp, 16), l))
        v128.store(pp, a)
        v128.store(pp, b, 16)
        v128.store(dp, f32x4.mul(a, f32x4.sub(v128.load(dp), d)))
        v128.store(dp, f32x4.mul(b, f32x4.sub(v128.load(dp, 16), d)), 16)
        pp += 32
        dp += 32
      }
    }
  }
  spreadTiles(p, r, ob, hd, list, n, dv, ldd)
  spreadTiles(ds, r, qb, hd, list, n, dk, ldd)
  weighRows(ds, r, k, ldk, hd, list, n, gb)
  for (let h = 0; h < group; h++) {
    for (let i = 0; i < count; i++) {
      memory.copy(dq + <usize>i * lddq + <usize>h * row, gb + <usize>(h * count + i) * row, row)
    }
  }
}
