/**
 * @file Real numbers in JSON, without loss.
 *
 * JSON has no NaN and no infinity, and JSON.stringify turns -0 into 0. Those three are written as
 * strings (`"NaN"`, `"Infinity"`, `"-Infinity"`) and as `-0.0`.
 * A float32 is written with 9 significant digits, which identify it among all float32 values and stay
 * clear of the midpoint between two of them, so parsing to float64 and rounding gives the same bits.
 */

/** Text of a float32 in JSON. `Math.fround(realFrom(JSON.parse(text)))` is the same float32. */
export function float32Text(value: number): string {
  const single = Math.fround(value)
  if (!Number.isFinite(single)) return `"${single}"`
  return Object.is(single, -0) ? '-0.0' : String(Number(single.toPrecision(9)))
}

/** A float64 as a JSON value: itself, or a string when JSON has no number for it. */
export function realToJson(value: number): number | string {
  return Number.isFinite(value) ? value : String(value)
}

/** The number behind a JSON value made by float32Text or realToJson; undefined for anything else. */
export function realFrom(json: unknown): number | undefined {
  if (typeof json === 'number') return json
  if (json === 'NaN' || json === 'Infinity' || json === '-Infinity') return Number(json)
  return undefined
}
