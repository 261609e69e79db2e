import { afterEach, expect, test } from 'vitest'
import type { ModelShape } from '../kernels/shape.ts'
import { startCells } from '../../test/support/cells.ts'
import { LiveRun } from '../../test/support/live-run.ts'

/** 0.85 million parameters. */
const SHAPE: ModelShape = {
  vocabSize: 1024,
  hiddenSize: 128,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  headDim: 32,
  ffSize: 352,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
/** Of a move, request to role. [ms] */
const GOAL_MS = 300

const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN
}

test('embedded cells change their role within 300 ms while executions go on, and hand their caches over', async () => {
  const engine = { slots: 6, maxContext: 1024, seed: 3 }
  const cells = await startCells('embedded-cell.ts', 3, {
    slots: 6,
    engine: () => ({ ...engine, model: { ...SHAPE } }),
  })
  cleanups.push(() => cells.close())
  const run = await LiveRun.over(cells, {
    config: { cells: 3, cellSlots: 6, groupSize: 8, kvHandover: true, carryOver: 0, totalSteps: 6, stepsPerBurst: 1 },
    longest: 400,
  })
  cleanups.push(() => run.close())
  const summary = await run.controller.run()
  expect(await run.flaws(summary)).toEqual([])
  const moves = run.of('role-transfer').filter((e) => e.to === 'training' && e.liveExecutions > 0)
  expect(moves.length).toBeGreaterThan(3)
  expect(summary.tokensHandedOver).toBeGreaterThan(0)
  expect(median(moves.map((e) => e.durationMs))).toBeLessThan(GOAL_MS)
}, 120_000)
