/** @file A curve in one line of text. Pure. */

const BARS = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'] as const

/**
 * One bar per value, or per mean of neighbours when there are more values than `width`. A value that is not finite
 * is a space.
 * @param range [low, high] of the axis; by default that of the values.
 */
export function sparkline(values: readonly number[], width = 40, range?: readonly [number, number]): string {
  const shown = values.length <= width ? values : buckets(values, width)
  const finite = shown.filter(Number.isFinite)
  const [low, high] = range ?? [Math.min(...finite), Math.max(...finite)]
  return shown
    .map((value) => {
      if (!Number.isFinite(value)) return ' '
      const share = high > low ? (value - low) / (high - low) : 0.5
      return BARS[Math.max(0, Math.min(BARS.length - 1, Math.floor(share * BARS.length)))] ?? ' '
    })
    .join('')
}

function buckets(values: readonly number[], count: number): number[] {
  return Array.from({ length: count }, (_, i) => {
    const from = Math.floor((i * values.length) / count)
    const slice = values.slice(from, Math.floor(((i + 1) * values.length) / count)).filter(Number.isFinite)
    return slice.reduce((sum, value) => sum + value, 0) / slice.length
  })
}
