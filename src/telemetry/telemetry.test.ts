import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, describe, expect, test } from 'vitest'
import { curveSvg, trailingMean } from './curve.ts'
import { createDisplay } from './display.ts'
import { openJsonl, readJsonl } from './jsonl.ts'
import { cutLine, panelLines, type Paint, type RunView } from './panel.ts'
import { openRunLog, readStepMetrics } from './run-log.ts'
import { sparkline } from './sparkline.ts'
import { openTrace } from './trace.ts'

const folder = mkdtempSync(join(tmpdir(), 'gyre-telemetry-'))
afterAll(() => rmSync(folder, { recursive: true }))

const view: RunView = {
  run: 'quickstart',
  policy: 'elastic',
  stage: 'training',
  step: 12,
  totalSteps: 40,
  burst: 6,
  policyVersion: 10,
  rewards: [0.1, 0.2, 0.4, 0.612],
  groups: { outstanding: 8, ready: 3, consumed: 48 },
  executions: { live: 31, queued: 2, held: 0, finished: 390, excluded: 1, cut: 3 },
  cells: [
    { phase: 'training', executions: 0, slots: 40, busy: true },
    { phase: 'rollout', executions: 31, slots: 40, busy: true },
  ],
  standalone: [
    { name: 'rollout-0', phase: 'serving', executions: 2, slots: 8, policyVersion: 10 },
    { name: 'sglang-1', phase: 'failed', executions: 0, slots: 16, policyVersion: 8 },
  ],
  transfers: { count: 7, lastMs: 212, tokensHandedOver: 1840 },
  carryOver: 0.75,
  waterLevel: 33,
  capacity: 40,
  stalenessMean: 0.625,
  stalenessMax: 2,
  tokensPerSecond: 1240.4,
  elapsedMs: 192_000,
  etaMs: 310_000,
}

/** Up eight lines, to the first column, clear to the end. */
const BACK_OVER_PANEL = '\u001b[10A\r\u001b[J'
const red = (text: string): string => `\u001b[31m${text}\u001b[39m`

describe('JSON lines', () => {
  test('are whole after a kill tore the last one', () => {
    const path = join(folder, 'torn.jsonl')
    const first = openJsonl(path)
    first.write({ n: 1, text: 'a\nb', bad: Number.NaN })
    first.close()
    appendFileSync(path, '{"n":2,"te')
    expect(readJsonl(path)).toEqual([{ n: 1, text: 'a\nb', bad: null }])
    const second = openJsonl(path)
    second.write({ n: 3 })
    second.close()
    expect(readFileSync(path, 'utf8')).toBe('{"n":1,"text":"a\\nb","bad":null}\n{"n":3}\n')
  })

  test('a file that is one torn line of any length is emptied', () => {
    const path = join(folder, 'long.jsonl')
    appendFileSync(path, 'x'.repeat(10_000))
    openJsonl(path).close()
    expect(readFileSync(path, 'utf8')).toBe('')
    expect(readJsonl(join(folder, 'missing.jsonl'))).toEqual([])
  })

  test('steps that a resumed run did again replace those that were lost', () => {
    const log = openRunLog(folder, { now: () => 7 })
    for (const [step, reward] of [
      [1, 0.1],
      [2, 0.2],
      [3, 0.3],
      [2, 0.25],
    ] as const) {
      log.step(step, { reward })
    }
    log.event('role-transfer', { cell: 0 })
    log.close()
    expect(readStepMetrics(folder)).toEqual([
      { atMs: 7, step: 1, reward: 0.1 },
      { atMs: 7, step: 2, reward: 0.25 },
    ])
    expect(readJsonl(join(folder, 'events.jsonl'))).toEqual([{ atMs: 7, kind: 'role-transfer', cell: 0 }])
  })
})

describe('the panel', () => {
  test('shows every number of a run', () => {
    expect(panelLines(view, 100).join('\n')).toMatchInlineSnapshot(`
      "quickstart  elastic  training
      step       ██████░░░░░░░░░░░░░░ 12 of 40  burst 6  version 10  3m12s  eta 5m10s
      reward     ▁▂▄▅ 0.612
      cells      0 ● training   1 ● rollout 31/40
      beside     rollout-0 ● 2/8 version 10   sglang-1 ○ failed
      water      █████████████████░░░ 33 unfinished, 40 slots roll out
      groups     8 out, 3 ready, 48 trained   phi 0.75
      executions 31 live, 2 queued, 390 finished, 3 cut, 1 excluded
      transfers  7, the last to training in 212ms, 1840 tokens handed over
      staleness  0.6 mean, 2 max   1240 tokens/s"
    `)
  })

  test('never has a line wider than the terminal, nor a color left on', () => {
    const paint: Paint = { dim: red, bold: red, green: red, yellow: red, cyan: red, red }
    fc.assert(
      fc.property(fc.integer({ min: 20, max: 200 }), (width) => {
        for (const line of panelLines(view, width, paint)) {
          const plain = line.replaceAll('\u001b[31m', '').replaceAll('\u001b[39m', '')
          expect(plain.length).toBeLessThanOrEqual(width)
          expect(line.split('\u001b[31m').length).toBe(line.split('\u001b[39m').length)
        }
      }),
    )
    expect(cutLine('ab\u{1F600}cd', 3)).toBe('ab\u{1F600}')
  })

  test('is redrawn in place at most eight times a second, and notes stay above it', async () => {
    const out: string[] = []
    let now = 0
    const display = createDisplay({
      kind: 'panel',
      write: (text) => out.push(text),
      width: () => 80,
      clock: { now: () => now },
    })
    display.update(view)
    for (let i = 0; i < 50; i++) display.update({ ...view, step: i })
    expect(out).toHaveLength(1)
    await new Promise((resolve) => setTimeout(resolve, 200))
    expect(out).toHaveLength(2)
    expect(out[1]?.startsWith(BACK_OVER_PANEL)).toBe(true)
    expect(out[1]).toContain('49 of 40')
    now = 1000
    display.note('cell 1 restarted')
    expect(out[2]?.startsWith(`${BACK_OVER_PANEL}cell 1 restarted\nquickstart`)).toBe(true)
    display.end()
    display.update(view)
    expect(out).toHaveLength(4)
  })

  test('in a pipe there is one line a step, and a sign of life in between', () => {
    const out: string[] = []
    let now = 0
    const display = createDisplay({
      kind: 'plain',
      write: (text) => out.push(text),
      width: () => 80,
      clock: { now: () => now },
    })
    display.update(view)
    display.stepDone(view, {})
    now = 15_000
    display.update(view)
    display.update(view)
    expect(out).toEqual([
      'step 12/40  burst 6  reward 0.612  staleness 0.6 mean, 2 max  1240 tokens/s  3m12s  eta 5m10s\n',
      'training  cells: 0 training, 1 rollout  31 live, 390 finished executions  3m12s\n',
    ])
  })

  test('for programs there are JSON lines', () => {
    const out: string[] = []
    const display = createDisplay({
      kind: 'json',
      write: (text) => out.push(text),
      width: () => 80,
      clock: { now: () => 0 },
    })
    display.update(view)
    display.update(view)
    display.stepDone(view, { loss: 0.5 })
    display.note('x')
    expect(out.map((line) => (JSON.parse(line) as { kind: string }).kind)).toEqual(['view', 'step', 'note'])
  })
})

describe('curves', () => {
  test('a sparkline has one bar per value, or per group of values', () => {
    expect(sparkline([0, 0.5, 1], 40, [0, 1])).toBe('▁▅█')
    expect(sparkline([3, 3, 3])).toBe('▅▅▅')
    expect(sparkline([0, Number.NaN, 1])).toBe('▁ █')
    expect(sparkline([])).toBe('')
    expect(
      sparkline(
        Array.from({ length: 1000 }, (_, i) => i),
        8,
      ),
    ).toBe('▁▂▃▄▅▆▇█')
  })

  test('any curve is an SVG without a number that is not one', () => {
    const point = fc.tuple(fc.double(), fc.double())
    fc.assert(
      fc.property(fc.array(fc.array(point, { maxLength: 5 }), { maxLength: 4 }), fc.string(), (lists, title) => {
        const svg = curveSvg({
          title,
          xLabel: 'x',
          yLabel: 'y',
          yRange: [0, 1],
          series: lists.map((points, i) => ({ name: `s${i}`, points: points.filter(([x]) => Math.abs(x) < 1e9) })),
        })
        expect(svg.replace(/<text.*?<\/text>|aria-label="[^"]*"/gs, '')).not.toMatch(/NaN|Infinity|undefined/)
        expect(svg).toMatch(/^<svg [^>]*>.*<\/svg>\n$/s)
      }),
    )
  })

  test('the smoothed curve is the mean of what came before', () => {
    expect(trailingMean([2, 4, 6, 8], 2)).toEqual([2, 3, 5, 7])
  })
})

test('a timeline is valid JSON at its end and repairable before', () => {
  const path = join(folder, 'trace.json')
  const trace = openTrace(path)
  trace.slice({ track: 'cell 0', name: 'training', startMs: 1.5, durationMs: 2 })
  trace.slice({ track: 'cell 0', name: 'rollout', startMs: 4, durationMs: 1 })
  trace.span('e1', { name: 'execution', startMs: 0, durationMs: 9, facts: { reward: 1 } })
  trace.counter('water level', 3, 12)
  expect(JSON.parse(`${readFileSync(path, 'utf8')}]`)).toHaveLength(6)
  trace.close()
  const events = JSON.parse(readFileSync(path, 'utf8')) as { ph: string; tid: number; ts?: number }[]
  expect(events.map((e) => e.ph)).toEqual(['M', 'X', 'X', 'b', 'e', 'C'])
  expect(events[1]).toMatchObject({ tid: 1, ts: 1500, dur: 2000 })
})
