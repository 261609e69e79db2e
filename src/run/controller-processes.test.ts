import { afterEach, expect, test } from 'vitest'
import type { CellSupervisorOptions } from '../adapters/cell/process/supervisor.ts'
import { startBigramCells } from '../../test/support/cells.ts'
import { DEADLINES, LiveRun, PATIENCE_MS } from '../../test/support/live-run.ts'
import type { LiveRunOptions } from '../../test/support/live-run.ts'
import { PARAMETERS } from '../../test/support/toy-training.ts'
import type { ControllerEvent } from './controller-types.ts'

const ENGINE = { vocabSize: PARAMETERS, tokenDelayMs: 1, stepDelayMs: 5 }

const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

async function start(options: LiveRunOptions, cells: Partial<CellSupervisorOptions> = {}): Promise<LiveRun> {
  const started = await startBigramCells(2, ENGINE, { slots: 12, ...cells })
  cleanups.push(() => started.close())
  const run = await LiveRun.over(started, options)
  cleanups.push(() => run.close())
  return run
}

/** Whom to hit now: each role once. */
function victim(event: ControllerEvent): { readonly name: string; readonly cell: number } | undefined {
  const live = event.snapshot.cells[1]?.executions ?? 0
  if (event.kind === 'execution-finished' && live > 2) return { name: 'in rollout', cell: 1 }
  if (event.kind !== 'micro-step') return undefined
  if (event.cell === 1) return { name: 'satellite in training', cell: 1 }
  return event.step % 2 === 1 ? { name: 'core in training', cell: 0 } : undefined
}

for (const [signal, deadlines] of [
  ['SIGKILL', {}],
  // Nobody tells of a stopped process: only its silence does.
  ['SIGSTOP', { heartbeatMs: 300, healthMs: 1500 }],
] as const) {
  test(`${signal} of real cells in rollout and in training, core and satellite: every group is trained once`, async () => {
    const hit: string[] = []
    const run = await start({
      deadlines,
      onEvent: (event, live) => {
        const wanted = victim(event)
        if (wanted === undefined || hit.includes(wanted.name)) return
        hit.push(wanted.name)
        live.signal(wanted.cell, signal)
      },
    })
    const summary = await run.controller.run()
    expect(hit.toSorted()).toEqual(['core in training', 'in rollout', 'satellite in training'])
    expect(summary.cellRestarts).toBe(3)
    if (signal === 'SIGSTOP') {
      for (const { reason } of run.of('cell-failed')) expect(reason).toMatch(/2 heartbeats in a row missed/)
    }
    expect(await run.flaws(summary)).toEqual([])
  }, 90_000)
}

test('kill -9 of real cells in the middle of every verb: every group is trained once', async () => {
  const phases: readonly (readonly [string, number])[] = [
    ['pinKv', 0],
    ['enterTraining', 0],
    ['enterTraining', 1],
    ['zeroGradients', 0],
    ['pullWeights', 1],
    ['forwardBackward', 0],
    ['forwardBackward', 1],
    ['reduceGradients', 0],
    ['optimizerStep', 0],
    ['setPolicyVersion', 0],
    ['saveCheckpoint', 0],
    ['enterRollout', 0],
    ['enterRollout', 1],
  ]
  const left = phases.map(([verb, cell]) => `${verb} of cell ${cell}`)
  const total = left.length
  let isQuiet = true
  const run = await start({
    config: { kvHandover: true, totalSteps: 20, cellRestarts: total },
    longest: 60,
    onEvent: (event) => {
      const isFirst = event.kind === 'execution-started' && event.snapshot.step === 0 && left.length === total
      if (event.kind === 'step' || isFirst) isQuiet = false
    },
    onVerb: (verb, cell, live) => {
      const at = left.indexOf(`${verb} of cell ${cell}`)
      // One at a time: the next one comes a step later.
      if (isQuiet || at < 0) return
      isQuiet = true
      left.splice(at, 1)
      live.signal(cell, 'SIGKILL')
    },
  })
  const summary = await run.controller.run()
  expect(left).toEqual([])
  expect(summary.cellRestarts).toBe(total)
  expect(await run.flaws(summary)).toEqual([])
}, 120_000)

test('a satellite far slower than the others loses its work to them', async () => {
  let starts = 0
  const slowAtFirst = {
    engine: (index: number) => ({ ...ENGINE, stepDelayMs: index === 1 && starts++ === 0 ? 10_000 : 5 }),
  }
  const run = await start(
    {
      // Hurried, the floor of the patience is one second; the slow cell would take ten.
      speed: 5,
      config: { totalSteps: 12 },
      deadlines: Object.fromEntries(Object.keys(DEADLINES).map((name) => [name, 5 * PATIENCE_MS])),
    },
    slowAtFirst,
  )
  const summary = await run.controller.run()
  const [slow] = run.of('cell-slow')
  expect(slow).toMatchObject({ cell: 1 })
  expect(slow?.waitedMs).toBeLessThan(10_000)
  expect(run.of('cell-failed')).toMatchObject([{ cell: 1 }])
  expect(summary.cellRestarts).toBe(1)
  expect(await run.flaws(summary)).toEqual([])
}, 60_000)
