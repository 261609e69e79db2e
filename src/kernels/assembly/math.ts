/**
 * e^x in each lane, exactly 0 below -87. Range reduction by ln 2 in two parts, then a degree 6 Chebyshev
 * fit on [-ln2/2, ln2/2] (relative error 3e-9 before rounding).
 */
// @ts-ignore: decorator
@inline
export function exp4(x: v128): v128 {
  const low = f32x4.splat(-87.0)
  const alive = f32x4.ge(x, low)
  const bounded = f32x4.min(f32x4.max(x, low), f32x4.splat(88.0))
  const n = f32x4.nearest(f32x4.mul(bounded, f32x4.splat(1.44269504)))
  let r = f32x4.sub(bounded, f32x4.mul(n, f32x4.splat(0.693359375)))
  r = f32x4.add(r, f32x4.mul(n, f32x4.splat(2.12194440e-4)))
  let y = f32x4.add(f32x4.mul(f32x4.splat(0.00139486406), r), f32x4.splat(0.00837517079))
  y = f32x4.add(f32x4.mul(y, r), f32x4.splat(0.0416662174))
  y = f32x4.add(f32x4.mul(y, r), f32x4.splat(0.16666415))
  y = f32x4.add(f32x4.mul(y, r), f32x4.splat(0.50000001))
  y = f32x4.add(f32x4.mul(y, r), f32x4.splat(1.00000004))
  y = f32x4.add(f32x4.mul(y, r), f32x4.splat(1.0))
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23)
  return v128.and(f32x4.mul(y, power), alive)
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
