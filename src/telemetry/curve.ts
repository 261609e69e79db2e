/** @file A training curve as an SVG that stands alone: axes, labels, a legend, readable on light and dark. Pure. */

export interface CurveSeries {
  readonly name: string
  /** [x, y] in order of x. Points that are not finite are left out. */
  readonly points: readonly (readonly [number, number])[]
  /** Default `line`. */
  readonly shape?: 'line' | 'dots' | 'dashed'
}

export interface Curve {
  readonly title: string
  readonly xLabel: string
  readonly yLabel: string
  /** [low, high]; by default that of the points. */
  readonly yRange?: readonly [number, number]
  readonly series: readonly CurveSeries[]
}

const WIDTH = 720
const HEIGHT = 400
const PLOT = { left: 64, right: 24, top: 56, bottom: 56 } as const
/** Told apart also without colors: by shape, and by the legend's order. */
const COLORS = ['#2f7ed8', '#e07b39', '#3c9d5d', '#8e5bb5', '#c0504d'] as const

const STYLE = `
  .back { fill: #ffffff } .text { fill: #24292f; font: 13px system-ui, sans-serif } .title { font-size: 16px; font-weight: 600 }
  .grid { stroke: #d8dee4; stroke-width: 1 } .axis { stroke: #57606a; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } .text { fill: #c9d1d9 } .grid { stroke: #30363d } .axis { stroke: #8b949e }
  }`

export function curveSvg(curve: Curve): string {
  const series = curve.series.map((one) => ({
    ...one,
    points: one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)),
  }))
  const all = series.flatMap((one) => one.points)
  const xs = axis(all.map(([x]) => x))
  const ys = axis(
    all.map(([, y]) => y),
    curve.yRange,
  )
  const x = (value: number): number => PLOT.left + share(value, xs) * (WIDTH - PLOT.left - PLOT.right)
  const y = (value: number): number => HEIGHT - PLOT.bottom - share(value, ys) * (HEIGHT - PLOT.top - PLOT.bottom)
  const right = WIDTH - PLOT.right
  const bottom = HEIGHT - PLOT.bottom
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(curve.title)}">`,
    `<style>${STYLE}\n</style>`,
    `<rect class="back" width="${WIDTH}" height="${HEIGHT}" rx="8"/>`,
    `<text class="text title" x="${PLOT.left}" y="28">${escaped(curve.title)}</text>`,
    ...ys.ticks.map((tick) => horizontal(tick, y(tick), right)),
    ...xs.ticks.map((tick) => vertical(tick, x(tick), bottom)),
    `<path class="axis" fill="none" d="M${PLOT.left} ${PLOT.top}V${bottom}H${right}"/>`,
    `<text class="text" x="${(PLOT.left + right) / 2}" y="${HEIGHT - 14}" text-anchor="middle">${escaped(curve.xLabel)}</text>`,
    `<text class="text" transform="translate(18 ${(PLOT.top + bottom) / 2}) rotate(-90)" text-anchor="middle">${escaped(curve.yLabel)}</text>`,
    ...series.map((one, i) => seriesPath(one, i, x, y)),
    ...series.map((one, i) => legend(one.name, i, series.slice(0, i))),
    '</svg>',
  ]
  return `${parts.join('\n')}\n`
}

/** Mean of each value and up to `span - 1` before it. */
export function trailingMean(values: readonly number[], span: number): readonly number[] {
  return values.map((_, i) => {
    const slice = values.slice(Math.max(0, i - span + 1), i + 1)
    return slice.reduce((sum, value) => sum + value, 0) / slice.length
  })
}

interface Axis {
  readonly low: number
  readonly high: number
  readonly ticks: readonly number[]
}

function axis(values: readonly number[], range?: readonly [number, number]): Axis {
  let [low, high] = range ?? (values.length === 0 ? [0, 1] : [Math.min(...values), Math.max(...values)])
  if (low === high) {
    low -= 0.5
    high += 0.5
  }
  const step = niceStep((high - low) / 6)
  const first = Math.ceil(low / step - 1e-9)
  const last = Math.floor(high / step + 1e-9)
  return { low, high, ticks: Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step) }
}

/** The smallest of 1, 2, 5 times a power of ten that is at least `least`. */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least))
  return ([1, 2, 5].find((factor) => factor * power >= least * 0.999) ?? 10) * power
}

function share(value: number, { low, high }: Axis): number {
  return (Math.min(Math.max(value, low), high) - low) / (high - low)
}

function horizontal(tick: number, at: number, right: number): string {
  const label = `<text class="text" x="${PLOT.left - 8}" y="${px(at + 4)}" text-anchor="end">${tickText(tick)}</text>`
  return `<line class="grid" x1="${PLOT.left}" x2="${right}" y1="${px(at)}" y2="${px(at)}"/>${label}`
}

function vertical(tick: number, at: number, bottom: number): string {
  const label = `<text class="text" x="${px(at)}" y="${bottom + 20}" text-anchor="middle">${tickText(tick)}</text>`
  return `<line class="axis" x1="${px(at)}" x2="${px(at)}" y1="${bottom}" y2="${bottom + 5}"/>${label}`
}

function seriesPath(
  series: CurveSeries,
  index: number,
  x: (value: number) => number,
  y: (value: number) => number,
): string {
  const color = COLORS[index % COLORS.length] ?? COLORS[0]
  if (series.shape === 'dots') {
    return series.points.map(([a, b]) => `<circle cx="${px(x(a))}" cy="${px(y(b))}" r="3" fill="${color}"/>`).join('')
  }
  const path = series.points.map(([a, b], i) => `${i === 0 ? 'M' : 'L'}${px(x(a))} ${px(y(b))}`).join('')
  const dash = series.shape === 'dashed' ? ' stroke-dasharray="6 5"' : ''
  return `<path d="${path || 'M0 0'}" fill="none" stroke="${color}" stroke-width="2" stroke-linejoin="round"${dash}/>`
}

/** Names side by side below the title; widths are estimated, since an SVG cannot measure. */
function legend(name: string, index: number, before: readonly CurveSeries[]): string {
  const x = PLOT.left + before.reduce((sum, one) => sum + 34 + one.name.length * 7, 0)
  const color = COLORS[index % COLORS.length] ?? COLORS[0]
  return `<rect x="${x}" y="39" width="14" height="4" rx="2" fill="${color}"/><text class="text" x="${x + 20}" y="46">${escaped(name)}</text>`
}

function px(value: number): string {
  return String(Number(value.toFixed(1)))
}

function tickText(value: number): string {
  return String(Number(value.toPrecision(6)))
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
}
