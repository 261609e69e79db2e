import { afterAll, describe, expect, test } from 'vitest'
import { refusal, type ToyCell } from '../../test/support/toy-cells.ts'
import { closeRigs, Rig, type RigOptions } from '../../test/support/toy-rig.ts'

afterAll(closeRigs)

/** Whose last executions take so long that members of the step wait for them. */
const tailed = (options: RigOptions = {}): Rig =>
  new Rig({
    ...options,
    config: { earlyForward: true, demandAware: false, groupSize: 4, ...options.config },
    work: { longest: 80, ...options.work },
  })

const cellOf = (rig: Rig, index: number): ToyCell => {
  const cell = rig.supervisor.cells[index]
  if (cell === undefined) throw new Error(`no cell ${index}`)
  return cell
}

const total = (rig: Rig, metric: string): number =>
  rig.of('step').reduce((sum, { summary }) => sum + (summary.metrics[metric] ?? 0), 0)

describe.concurrent('with gradients kept before their group is complete, a run trains every group exactly once', () => {
  test.each(['elastic', 'async'] as const)('under %s', async (policy) => {
    const rig = tailed({ config: { policy } })
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(0)
    const used = total(rig, 'early_micro_steps')
    expect(used).toBeGreaterThan(0)
    expect(total(rig, 'early_gradients')).toBeGreaterThanOrEqual(used)
  })

  test('with executions that are excluded, and groups without gradient', async () => {
    const rig = tailed({ work: { excludeEvery: 5, emptyEvery: 3 } })
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(total(rig, 'early_micro_steps')).toBeGreaterThan(0)
  })

  test('and without them when the lever is off', async () => {
    const rig = tailed({ config: { earlyForward: false } })
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(total(rig, 'early_gradients')).toBe(0)
  })
})

describe.concurrent('a cell that refuses is well, and the micro-step is computed as any other', () => {
  const refusals = [
    ['holdGradient', 'E_TRAINER_HELD_FULL'],
    ['holdGradient', 'E_TRAINER_NOT_HOLDABLE'],
    ['applyHeld', 'E_TRAINER_NOT_HELD'],
    ['applyHeld', 'E_TRAINER_HELD_SIGN'],
  ] as const
  for (const [verb, code] of refusals) {
    test(`${verb}: ${code}`, async () => {
      const rig = tailed()
      let refused = 0
      for (const cell of rig.supervisor.cells) {
        cell.faults.set(verb, () => {
          refused++
          return refusal(code)
        })
      }
      const summary = await rig.run()
      expect(rig.flaws(summary)).toEqual([])
      expect(refused).toBeGreaterThan(0)
      expect(summary.cellRestarts).toBe(0)
      expect(total(rig, 'early_micro_steps')).toBe(0)
    })
  }

  test('a cell of an engine that cannot keep gradients, after a step without gradient', async () => {
    const rig = tailed({ work: { emptyEvery: 1 } })
    for (const cell of rig.supervisor.cells) Object.assign(cell, { holdGradient: undefined, dropHeld: undefined })
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(0)
  })
})

describe.concurrent('a holder that dies loses nothing', () => {
  for (const index of [0, 1]) {
    for (const verb of ['holdGradient', 'applyHeld'] as const) {
      test(`cell ${index} at ${verb}`, async () => {
        const rig = tailed()
        let died = 0
        cellOf(rig, index).faults.set(verb, () => {
          if (died++ === 0) rig.supervisor.kill(index)
          return undefined
        })
        const summary = await rig.run()
        expect(rig.flaws(summary)).toEqual([])
        expect(died).toBeGreaterThan(0)
        expect(summary.cellRestarts).toBe(1)
      })
    }
  }

  test('one that hangs over it is started anew', async () => {
    const rig = tailed({ config: { totalSteps: 2 }, work: { longest: 500 } })
    cellOf(rig, 1).hangs.add('holdGradient')
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([
      { cell: 1, reason: expect.stringMatching(/keeping the gradient early\..* did not end within 300 ms/) },
    ])
  })
})

test('an empty step drops what the core keeps', async () => {
  const rig = tailed({ config: { cells: 2, demandAware: true }, work: { emptyEvery: 1 } })
  const core = cellOf(rig, 0)
  let mostHeld = 0
  let dropped = 0
  rig.react = () => {
    mostHeld = Math.max(mostHeld, core.process?.held.size ?? 0)
  }
  core.faults.set('dropHeld', () => {
    dropped++
    return undefined
  })
  const summary = await rig.run()
  expect(rig.flaws(summary)).toEqual([])
  expect(mostHeld).toBeGreaterThan(0)
  expect(dropped).toBeGreaterThan(0)
  expect(core.process?.held.size).toBe(0)
})
