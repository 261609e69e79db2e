/** Constants of exp4 in memory: a broadcast load is one instruction, a vector constant in a loop is several. */
const EXP: usize = memory.data<f32>([
  -87.0, 88.0, 1.44269504, 12582912.0, -0.693359375, 2.1219444e-4,
  0.00139486406, 0.00837517079, 0.0416662174, 0.16666415, 0.50000001, 1.00000004, 1.0,
])

// @ts-ignore: decorator
@inline
function k(i: usize): v128 {
  return v128.load_splat<f32>(EXP + (i << 2))
}

/**
 * e^x in each lane, exactly 0 below -87, NaN for NaN. Range reduction by ln 2 in two parts (adding 1.5 x 2^23 rounds to an
 * integer and leaves it in the low bits), then a degree 6 Chebyshev fit on [-ln2/2, ln2/2] (relative error 3e-9
 * before rounding).
 */
// @ts-ignore: decorator
@inline
export function exp4(x: v128): v128 {
  const low = k(0)
  const dead = f32x4.lt(x, low)
  const bounded = f32x4.pmin(f32x4.pmax(x, low), k(1))
  const shifted = f32x4.add(f32x4.mul(bounded, k(2)), k(3))
  const n = f32x4.sub(shifted, k(3))
  const r = f32x4.add(f32x4.add(bounded, f32x4.mul(n, k(4))), f32x4.mul(n, k(5)))
  let y = f32x4.add(f32x4.mul(k(6), r), k(7))
  y = f32x4.add(f32x4.mul(y, r), k(8))
  y = f32x4.add(f32x4.mul(y, r), k(9))
  y = f32x4.add(f32x4.mul(y, r), k(10))
  y = f32x4.add(f32x4.mul(y, r), k(11))
  y = f32x4.add(f32x4.mul(y, r), k(12))
  const power = i32x4.add(i32x4.shl(shifted, 23), k(12))
  return v128.andnot(f32x4.mul(y, power), dead)
}

/** Sum of the lanes of a pair of f64x2, in one fixed order. */
// @ts-ignore: decorator
@inline
export function sum4(low: v128, high: v128): f64 {
  return (
    f64x2.extract_lane(low, 0) + f64x2.extract_lane(low, 1) + (f64x2.extract_lane(high, 0) + f64x2.extract_lane(high, 1))
  )
}

/** Lanes 2 and 3 widened to f64. */
// @ts-ignore: decorator
@inline
export function promoteHigh(x: v128): v128 {
  return f64x2.promote_low_f32x4(i64x2.shuffle(x, x, 1, 1))
}

// @ts-ignore: decorator
@inline
export function maxLane(x: v128): f32 {
  const a = max<f32>(f32x4.extract_lane(x, 0), f32x4.extract_lane(x, 1))
  const b = max<f32>(f32x4.extract_lane(x, 2), f32x4.extract_lane(x, 3))
  return max<f32>(a, b)
}
