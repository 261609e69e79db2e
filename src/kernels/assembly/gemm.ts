/**
 * @file Matrix products. B is packed into panels of 8 columns, [N/8][K][8].
 *
 * Loops over k are not unrolled: V8 then keeps to the registers, and the 4 x 8 tile is a fifth faster.
 *
 * Modes: STORE c = a b; ADD c = c + a b (residual: the product is finished first); CONTINUE starts the
 * running sum at c, so that a K cut into pieces gives the bits of the uncut one.
 *
 * Inlined functions copy every parameter they advance: the compiler makes a parameter an alias of the caller's local.
 */
export const STORE: i32 = 0
export const ADD: i32 = 1
export const CONTINUE: i32 = 2

/** 4 rows x 8 columns. */
// @ts-ignore: decorator
@inline
export function tile4(a0: usize, lda: usize, b: usize, k: i32, c: usize, ldc: usize, mode: i32): void {
  let a = a0
  let bp = b
  let a1 = a + lda
  let a2 = a1 + lda
  let a3 = a2 + lda
  const c1 = c + ldc
  const c2 = c1 + ldc
  const c3 = c2 + ldc
  let s00 = f32x4.splat(0)
  let s01 = s00
  let s10 = s00
  let s11 = s00
  let s20 = s00
  let s21 = s00
  let s30 = s00
  let s31 = s00
  if (mode == CONTINUE) {
    s00 = v128.load(c)
    s01 = v128.load(c, 16)
    s10 = v128.load(c1)
    s11 = v128.load(c1, 16)
    s20 = v128.load(c2)
    s21 = v128.load(c2, 16)
    s30 = v128.load(c3)
    s31 = v128.load(c3, 16)
  }
  const end = bp + (<usize>k << 5)
  while (bp < end) {
    const b0 = v128.load(bp)
    const b1 = v128.load(bp, 16)
    let x = v128.load_splat<f32>(a)
    s00 = f32x4.add(s00, f32x4.mul(x, b0))
    s01 = f32x4.add(s01, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a1)
    s10 = f32x4.add(s10, f32x4.mul(x, b0))
    s11 = f32x4.add(s11, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a2)
    s20 = f32x4.add(s20, f32x4.mul(x, b0))
    s21 = f32x4.add(s21, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a3)
    s30 = f32x4.add(s30, f32x4.mul(x, b0))
    s31 = f32x4.add(s31, f32x4.mul(x, b1))
    a += 4
    a1 += 4
    a2 += 4
    a3 += 4
    bp += 32
  }
  if (mode == ADD) {
    s00 = f32x4.add(v128.load(c), s00)
    s01 = f32x4.add(v128.load(c, 16), s01)
    s10 = f32x4.add(v128.load(c1), s10)
    s11 = f32x4.add(v128.load(c1, 16), s11)
    s20 = f32x4.add(v128.load(c2), s20)
    s21 = f32x4.add(v128.load(c2, 16), s21)
    s30 = f32x4.add(v128.load(c3), s30)
    s31 = f32x4.add(v128.load(c3, 16), s31)
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
/** 1 row x 4 panels of 8 columns. */
// @ts-ignore: decorator
@inline
export function tile1x4(
  a0: usize, q0: usize, q1: usize, q2: usize, q3: usize, k: i32,
  c: usize, c1: usize, c2: usize, c3: usize, mode: i32,
): void {
  let a = a0
  let b = q0
  let b1 = q1
  let b2 = q2
  let b3 = q3
  let s00 = f32x4.splat(0)
  let s01 = s00
  let s10 = s00
  let s11 = s00
  let s20 = s00
  let s21 = s00
  let s30 = s00
  let s31 = s00
  if (mode == CONTINUE) {
    s00 = v128.load(c)
    s01 = v128.load(c, 16)
    s10 = v128.load(c1)
    s11 = v128.load(c1, 16)
    s20 = v128.load(c2)
    s21 = v128.load(c2, 16)
    s30 = v128.load(c3)
    s31 = v128.load(c3, 16)
  }
  const end = a + (<usize>k << 2)
  while (a < end) {
    const x = v128.load_splat<f32>(a)
    s00 = f32x4.add(s00, f32x4.mul(x, v128.load(b)))
    s01 = f32x4.add(s01, f32x4.mul(x, v128.load(b, 16)))
    s10 = f32x4.add(s10, f32x4.mul(x, v128.load(b1)))
    s11 = f32x4.add(s11, f32x4.mul(x, v128.load(b1, 16)))
    s20 = f32x4.add(s20, f32x4.mul(x, v128.load(b2)))
    s21 = f32x4.add(s21, f32x4.mul(x, v128.load(b2, 16)))
    s30 = f32x4.add(s30, f32x4.mul(x, v128.load(b3)))
    s31 = f32x4.add(s31, f32x4.mul(x, v128.load(b3, 16)))
    a += 4
    b += 32
    b1 += 32
    b2 += 32
    b3 += 32
  }
  if (mode == ADD) {
    s00 = f32x4.add(v128.load(c), s00)
    s01 = f32x4.add(v128.load(c, 16), s01)
    s10 = f32x4.add(v128.load(c1), s10)
    s11 = f32x4.add(v128.load(c1, 16), s11)
    s20 = f32x4.add(v128.load(c2), s20)
    s21 = f32x4.add(v128.load(c2, 16), s21)
    s30 = f32x4.add(v128.load(c3), s30)
    s31 = f32x4.add(v128.load(c3, 16), s31)
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

/** 2 rows x 2 panels of 8 columns. */
// @ts-ignore: decorator
@inline
export function tile2x2(
  a0: usize, lda: usize, p: usize, q: usize, k: i32, c: usize, d: usize, ldc: usize, mode: i32,
): void {
  let a = a0
  let a1 = a + lda
  let b = p
  let b1 = q
  const c1 = c + ldc
  const d1 = d + ldc
  let s00 = f32x4.splat(0)
  let s01 = s00
  let s02 = s00
  let s03 = s00
  let s10 = s00
  let s11 = s00
  let s12 = s00
  let s13 = s00
  const end = a + (<usize>k << 2)
  while (a < end) {
    const v0 = v128.load(b)
    const v1 = v128.load(b, 16)
    const v2 = v128.load(b1)
    const v3 = v128.load(b1, 16)
    let x = v128.load_splat<f32>(a)
    s00 = f32x4.add(s00, f32x4.mul(x, v0))
    s01 = f32x4.add(s01, f32x4.mul(x, v1))
    s02 = f32x4.add(s02, f32x4.mul(x, v2))
    s03 = f32x4.add(s03, f32x4.mul(x, v3))
    x = v128.load_splat<f32>(a1)
    s10 = f32x4.add(s10, f32x4.mul(x, v0))
    s11 = f32x4.add(s11, f32x4.mul(x, v1))
    s12 = f32x4.add(s12, f32x4.mul(x, v2))
    s13 = f32x4.add(s13, f32x4.mul(x, v3))
    a += 4
    a1 += 4
    b += 32
    b1 += 32
  }
  if (mode == ADD) {
    s00 = f32x4.add(v128.load(c), s00)
    s01 = f32x4.add(v128.load(c, 16), s01)
    s02 = f32x4.add(v128.load(d), s02)
    s03 = f32x4.add(v128.load(d, 16), s03)
    s10 = f32x4.add(v128.load(c1), s10)
    s11 = f32x4.add(v128.load(c1, 16), s11)
    s12 = f32x4.add(v128.load(d1), s12)
    s13 = f32x4.add(v128.load(d1, 16), s13)
  }
  v128.store(c, s00)
  v128.store(c, s01, 16)
  v128.store(d, s02)
  v128.store(d, s03, 16)
  v128.store(c1, s10)
  v128.store(c1, s11, 16)
  v128.store(d1, s12)
  v128.store(d1, s13, 16)
}

/** 1 row x 8 columns. */
// @ts-ignore: decorator
@inline
export function tile1(a0: usize, b0: usize, k: i32, c: usize, mode: i32): void {
  let a = a0
  let b = b0
  let s0 = f32x4.splat(0)
  let s1 = s0
  if (mode == CONTINUE) {
    s0 = v128.load(c)
    s1 = v128.load(c, 16)
  }
  const end = a + (<usize>k << 2)
  while (a < end) {
    const x = v128.load_splat<f32>(a)
    s0 = f32x4.add(s0, f32x4.mul(x, v128.load(b)))
    s1 = f32x4.add(s1, f32x4.mul(x, v128.load(b, 16)))
    a += 4
    b += 32
  }
  if (mode == ADD) {
    s0 = f32x4.add(v128.load(c), s0)
    s1 = f32x4.add(v128.load(c, 16), s1)
  }
  v128.store(c, s0)
  v128.store(c, s1, 16)
}

/**
 * c[M, 8 x panels] = a[M, K] B. `b` points at the first panel wanted, `c` at its first column.
 * Reads a and c as rows of `lda` and `ldc` bytes.
 */
export function gemm(a: usize, lda: usize, b: usize, c: usize, ldc: usize, m: i32, k: i32, panels: i32, mode: i32): void {
  const size = <usize>k << 5
  const quads = m & ~3
  if (quads > 0) {
    for (let p = 0; p < panels; p++) {
      const bp = b + <usize>p * size
      let ap = a
      let cp = c + (<usize>p << 5)
      for (let i = 0; i < quads; i += 4) {
        if (mode == STORE) tile4(ap, lda, bp, k, cp, ldc, STORE)
        else tile4(ap, lda, bp, k, cp, ldc, ADD)
        ap += lda << 2
        cp += ldc << 2
      }
    }
  }
  let i = quads
  for (; i + 2 <= m; i += 2) {
    const ai = a + <usize>i * lda
    const ci = c + <usize>i * ldc
    let p = 0
    for (; p + 2 <= panels; p += 2) {
      const bp = b + <usize>p * size
      const cp = ci + (<usize>p << 5)
      tile2x2(ai, lda, bp, bp + size, k, cp, cp + 32, ldc, mode)
    }
    if (p < panels) {
      tile1(ai, b + <usize>p * size, k, ci + (<usize>p << 5), mode)
      tile1(ai + lda, b + <usize>p * size, k, ci + ldc + (<usize>p << 5), mode)
    }
  }
  for (; i < m; i++) {
    const ai = a + <usize>i * lda
    const ci = c + <usize>i * ldc
    let p = 0
    for (; p + 4 <= panels; p += 4) {
      const bp = b + <usize>p * size
      const cp = ci + (<usize>p << 5)
      tile1x4(ai, bp, bp + size, bp + 2 * size, bp + 3 * size, k, cp, cp + 32, cp + 64, cp + 96, mode)
    }
    for (; p < panels; p++) tile1(ai, b + <usize>p * size, k, ci + (<usize>p << 5), mode)
  }
}

/** 4 rows x 8 columns, continuing c, with a packed as [K][4]. */
// @ts-ignore: decorator
@inline
function tilePacked(a0: usize, q: usize, k: i32, c: usize, ldc: usize): void {
  let a = a0
  let b = q
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
  const end = b + (<usize>k << 5)
  while (b < end) {
    const b0 = v128.load(b)
    const b1 = v128.load(b, 16)
    let x = v128.load_splat<f32>(a)
    s00 = f32x4.add(s00, f32x4.mul(x, b0))
    s01 = f32x4.add(s01, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a, 4)
    s10 = f32x4.add(s10, f32x4.mul(x, b0))
    s11 = f32x4.add(s11, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a, 8)
    s20 = f32x4.add(s20, f32x4.mul(x, b0))
    s21 = f32x4.add(s21, f32x4.mul(x, b1))
    x = v128.load_splat<f32>(a, 12)
    s30 = f32x4.add(s30, f32x4.mul(x, b0))
    s31 = f32x4.add(s31, f32x4.mul(x, b1))
    a += 16
    b += 32
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

/** Rows of one thread's piece of K at a time: B panels of a piece stay in the second-level cache. */
const PIECE: i32 = 256

/**
 * c[M, N] += a^T b over T rows: the gradient of a weight [M, N] from a [T, M] and b [T, N].
 * Computes rows [from, to) of c, both multiples of 4; N is a multiple of 8.
 * `scratch` holds PIECE x (N + 4) floats.
 */
export function gemmTransposed(
  a: usize, lda: usize, b: usize, ldb: usize, c: usize, ldc: usize,
  t: i32, from: i32, to: i32, n: i32, scratch: usize,
): void {
  if (from >= to) return
  const bp = scratch + (PIECE << 4)
  for (let start = 0; start < t; start += PIECE) {
    const rows = min<i32>(PIECE, t - start)
    const size = <usize>rows << 5
    for (let p = 0; p < n; p += 8) {
      packPanel(b + <usize>start * ldb + (<usize>p << 2), ldb, rows, bp + <usize>(p >> 3) * size)
    }
    for (let i = from; i < to; i += 4) {
      let source = a + <usize>start * lda + (<usize>i << 2)
      let target = scratch
      for (let r = 0; r < rows; r++) {
        v128.store(target, v128.load(source))
        source += lda
        target += 16
      }
      const ci = c + <usize>i * ldc
      for (let p = 0; p < n; p += 8) {
        tilePacked(scratch, bp + <usize>(p >> 3) * size, rows, ci + (<usize>p << 2), ldc)
      }
    }
  }
}

// @ts-ignore: decorator
@inline
function packPanel(from: usize, ld: usize, rows: i32, to: usize): void {
  let source = from
  let target = to
  for (let r = 0; r < rows; r++) {
    v128.store(target, v128.load(source))
    v128.store(target, v128.load(source, 16), 16)
    source += ld
    target += 32
  }
}

/** Panels [from, to) of W^T for y = x W^T, from w [N, K] row-major: [N/8][K][8]. Rows beyond `n` are zero. */
export function packRows(w: usize, n: i32, k: i32, out: usize, from: i32, to: i32): void {
  for (let p = from; p < to; p++) {
    let target = out + (<usize>p * <usize>k << 5)
    for (let j = 0; j < k; j++) {
      for (let r = 0; r < 8; r++) {
        const row = (p << 3) + r
        store<f32>(target, row < n ? load<f32>(w + ((<usize>row * <usize>k + <usize>j) << 2)) : <f32>0)
        target += 4
      }
    }
  }
}

/** Panels [from, to) of W for dx = dy W, from w [N, K] row-major: [K/8][padded N][8]. Rows beyond `n` are zero. */
export function packColumns(w: usize, n: i32, padded: i32, k: i32, out: usize, from: i32, to: i32): void {
  for (let p = from; p < to; p++) {
    const target = out + (<usize>p * <usize>padded << 5)
    packPanel(w + (<usize>p << 5), <usize>k << 2, n, target)
    if (padded > n) memory.fill(target + (<usize>n << 5), 0, <usize>(padded - n) << 5)
  }
}
