/** @file What each lever does to a burst, on a workload with a long tail. Directions, not percentages. */
import { describe, expect, test } from 'vitest'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { longTailed, runFluid } from '../../test/support/fluid-world.ts'
import type { FluidRun, Workload } from '../../test/support/fluid-world.ts'
import { expectedStaleness } from './carry-over.ts'
import type { SchedulerConfig } from './types.ts'

const config = withLeversOff({
  policy: 'elastic',
  cells: 4,
  cellSlots: 16,
  standaloneSlots: [],
  groupSize: 4,
  groupsPerStep: 4,
  stepsPerBurst: 2,
  carryOver: 0,
  totalSteps: 24,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 1,
  cellRestarts: 1,
  excludedGroupsLimit: 3,
})

function workload(seed: number, change: Partial<Workload> = {}): Workload {
  return { executionMs: longTailed(seed, 1000, 0.6, 6000), microStepMs: 60, moveMs: 20, generating: 0.5, ...change }
}

const SEEDS = [1, 2]

const known = new Map<string, FluidRun[]>()

/** One run per seed; the same runs are the same, so they are done once. */
function runs(change: Partial<SchedulerConfig>, load: Partial<Workload> = {}): FluidRun[] {
  const settings = { ...config, ...change }
  const key = JSON.stringify([settings, load])
  const all = known.get(key) ?? SEEDS.map((seed) => runFluid(settings, workload(seed, load)))
  known.set(key, all)
  return all
}

function totalMs(all: readonly FluidRun[]): number {
  return all.reduce((sum, run) => sum + run.totalMs, 0)
}

function fixed(carryOver: number): Partial<SchedulerConfig> {
  return { carryOver, carryOverMin: carryOver, carryOverMax: carryOver }
}

describe('a real phi', () => {
  test('shortens bursts with every half step, at the price of staleness', () => {
    const [none, half, whole] = [0, 0.5, 1].map((phi) => runs(fixed(phi))) as [FluidRun[], FluidRun[], FluidRun[]]
    expect(totalMs(half)).toBeLessThan(totalMs(none))
    expect(totalMs(whole)).toBeLessThan(totalMs(half))
    for (const run of whole) {
      const means = run.staleness.slice(2, -2).map((s) => s.mean)
      const mean = means.reduce((sum, d) => sum + d, 0) / means.length
      expect(mean).toBeCloseTo(expectedStaleness(2, 1), 1)
      expect(Math.max(...run.staleness.map((s) => s.max))).toBeLessThanOrEqual(3)
    }
  })

  test('that is chosen is faster than none, and stays within its range and bound', () => {
    const all = runs({ carryOver: 0, carryOverMin: 0, carryOverMax: 1.5 })
    expect(totalMs(all)).toBeLessThan(totalMs(runs(fixed(0))))
    for (const { carryOvers, staleness } of all) {
      expect(Math.max(...carryOvers)).toBeGreaterThan(0)
      expect(Math.max(...carryOvers)).toBeLessThanOrEqual(1.5)
      expect(Math.max(...staleness.map((s) => s.max))).toBeLessThanOrEqual(3)
    }
  })

  test('stays at its least where training is what takes the time', () => {
    const [run] = runs({ carryOver: 1, carryOverMin: 0.25, carryOverMax: 2 }, { microStepMs: 20_000 })
    expect(run?.carryOvers.at(-1)).toBe(0.25)
  })

  test('never carries over more than the slots that stay when the core trains', () => {
    // Of 2 cells with 40 slots, one stays: 10 groups, 2.5 steps.
    const [run] = runs({ cells: 2, cellSlots: 40, carryOver: 1, carryOverMin: 0, carryOverMax: 8 })
    expect(Math.max(...(run?.carryOvers ?? []))).toBeLessThanOrEqual(2.5)
  })
})

describe('the straggler cut', () => {
  const cut = { stragglerQuorum: 0.75, stragglerGrace: 0.25 }

  test('shortens bursts, and more so with less grace', () => {
    const [never, late, soon] = [{}, cut, { ...cut, stragglerGrace: 0 }].map((c) => runs(c))
    expect(totalMs(late ?? [])).toBeLessThan(totalMs(never ?? []))
    expect(totalMs(soon ?? [])).toBeLessThan(totalMs(late ?? []))
  })

  test('ends a small part of the executions, each once', () => {
    for (const run of runs(cut)) {
      const told = run.log.flatMap((c) => (c.kind === 'cut-execution' ? [c.executionId] : []))
      expect(new Set(told).size).toBe(told.length)
      expect(told.length).toBe(run.cuts)
      expect(run.cuts).toBeGreaterThan(0)
      expect(run.cuts).toBeLessThan(0.25 * 24 * 4 * 4)
    }
  })

  test('shortens async bursts too: a baseline may be tuned', () => {
    const async = { policy: 'async' as const, trainingCells: 1, ...fixed(0.5) }
    expect(totalMs(runs({ ...async, ...cut }))).toBeLessThan(totalMs(runs(async)))
  })
})

describe('over-commit', () => {
  const tight = { cellSlots: 6 }

  test('admits more executions while engines wait for tools, and shortens bursts', () => {
    const [never, adaptive] = [runs(tight), runs({ ...tight, overCommit: 1.5 })]
    expect(totalMs(adaptive)).toBeLessThan(totalMs(never))
    expect(Math.max(...never.map((r) => r.mostRunning))).toBe(24)
    expect(Math.max(...adaptive.map((r) => r.mostRunning))).toBe(32)
  })

  test('admits no more than there are slots while engines are busy', () => {
    const [run] = runs({ ...tight, overCommit: 1.5 }, { generating: 1 })
    expect(run?.mostRunning).toBe(24)
  })
})

function movesOf(all: readonly FluidRun[]): number {
  return all.reduce((sum, run) => sum + run.moves, 0)
}

test('a demand-aware trigger moves fewer cells and costs next to nothing', () => {
  const [always, aware] = [runs({ demandAware: false, ...fixed(0.5) }), runs({ demandAware: true, ...fixed(0.5) })]
  expect(movesOf(aware)).toBeLessThan(movesOf(always))
  expect(totalMs(aware)).toBeLessThan(1.02 * totalMs(always))
})

test('all levers together are faster than the published policy, and that than colocate', () => {
  const published = runs({ policy: 'qwengyre' })
  const elastic = runs({
    carryOverMax: 1.5,
    stragglerQuorum: 0.75,
    stragglerGrace: 0.25,
    overCommit: 1.5,
    demandAware: true,
    placement: 'balanced',
    kvHandover: true,
  })
  expect(totalMs(published)).toBeLessThan(totalMs(runs({ policy: 'colocate' })))
  expect(totalMs(elastic)).toBeLessThan(totalMs(published))
})

test('a state that goes through JSON after every event does exactly the same', () => {
  const all = { carryOverMax: 1.5, stragglerQuorum: 0.75, stragglerGrace: 0.25, overCommit: 1.5, demandAware: true }
  const settings = { ...config, ...all, totalSteps: 12, cellSlots: 6 }
  const [direct, throughJson] = [false, true].map((json) => runFluid(settings, workload(1), json))
  expect(throughJson?.log).toEqual(direct?.log)
  expect(throughJson?.state).toEqual(JSON.parse(JSON.stringify(direct?.state)))
})
