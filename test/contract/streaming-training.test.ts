/** @file Training steps whose micro-steps are spread over real cell processes end in the bits of one cell alone. */
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { seededRng } from '../../src/core/rng.ts'
import { ADAM } from '../../src/ports/cell.contract.ts'
import type { Cell } from '../../src/ports/cell.ts'
import type { MicroBatch, Objective } from '../../src/training/batch.ts'
import { startCells, type StartedCells } from '../support/cells.ts'

/** 0.87M parameters: a micro-step of 1,024 tokens takes some 0.3 s. */
const MODEL = {
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
const OBJECTIVE: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.2,
  clipHigh: 0.28,
  ratioBound: 1000,
  entropyWeight: 0.01,
}
const MICRO_STEPS = 6
const STEPS = 2

/** A trunk with branches; every token of a branch is a target. */
function tree(seed: number, trunk = 16, branches = 3, length = 12): MicroBatch {
  const rng = seededRng(seed)
  const rows = [...Array(trunk + branches * length).keys()]
  const tokenIds = Int32Array.from(rows, () => rng.below(MODEL.vocabSize))
  const inBranch = (i: number): number => (i - trunk) % length
  const targets = rows.slice(trunk)
  return {
    tokenIds,
    positions: Int32Array.from(rows, (i) => (i < trunk ? i : trunk + inBranch(i))),
    subtreeEnd: Int32Array.from(rows, (i) => (i < trunk ? rows.length : i - inBranch(i) + length)),
    targetRows: Int32Array.from(targets, (i) => (inBranch(i) === 0 ? trunk - 1 : i - 1)),
    targetIds: Int32Array.from(targets, (i) => tokenIds[i] ?? 0),
    targetWeights: new Float32Array(targets.length).fill(1 / targets.length / MICRO_STEPS),
    targetAdvantages: Float32Array.from(targets, () => rng.next() * 4 - 2),
    targetBehaviorLogprobs: Float32Array.from(targets, () => -6.9 - rng.next() * 0.2),
  }
}
const LONG = tree(99, 24, 25, 40)

let started: StartedCells
let cells: readonly Cell[]
let folder: string
let expected: readonly string[]
let epoch = 1
let runs = 0

const cellAt = (index: number): Cell => {
  const cell = cells[index]
  if (cell === undefined) throw new Error(`there is no cell ${index}`)
  return cell
}
const core = (): Cell => cellAt(0)

beforeAll(async () => {
  started = await startCells('embedded-cell.ts', 3, {
    engine: (index) => ({
      model: MODEL,
      slots: 2,
      maxContext: 256,
      maxTrainTokens: 1024,
      seed: index,
      threads: index === 1 ? 2 : 1,
    }),
  })
  cells = started.supervisor.cells
  folder = mkdtempSync(join(started.folder, 'checkpoint-'))
  await core().saveCheckpoint(epoch, folder)
  expected = await train(async (step) => {
    for (let i = 0; i < MICRO_STEPS; i++) await run(0, step, i)
    return []
  })
})
afterAll(() => started.close())

const batchOf = (step: number, i: number): MicroBatch => tree(step * 100 + i)
const run = (cell: number, step: number, i: number): Promise<unknown> =>
  cellAt(cell).forwardBackward(epoch, `${runs}-${step}-${i}`, batchOf(step, i), OBJECTIVE)

async function joinStep(cell: number, step: number): Promise<void> {
  await cellAt(cell).pullWeights(epoch, core().address, step)
  await cellAt(cell).zeroGradients(epoch)
}

/**
 * Two steps from the checkpoint. @param work does one step's micro-steps, and says whose gradients are reduced.
 * @returns what identifies the result: both norms, and the hashes of weights and optimizer state.
 */
async function train(work: (step: number) => Promise<readonly number[]>): Promise<readonly string[]> {
  runs += 1
  epoch += 1
  const result: string[] = []
  await core().loadCheckpoint(epoch, folder, 0)
  for (let step = 0; step < STEPS; step++) {
    await core().zeroGradients(epoch)
    const from = await work(step)
    await core().reduceGradients(
      epoch,
      from.map((index) => cellAt(index).address),
    )
    const { gradientNorm } = await core().optimizerStep(epoch, `${runs}-${step}`, ADAM)
    result.push(String(gradientNorm))
  }
  const saved = mkdtempSync(join(started.folder, 'result-'))
  await core().saveCheckpoint(epoch, saved)
  for (const file of ['model.safetensors', 'optimizer.safetensors']) {
    result.push(
      createHash('sha256')
        .update(readFileSync(join(saved, file)))
        .digest('hex'),
    )
  }
  rmSync(saved, { recursive: true })
  return result
}

test('whatever cell does which micro-step, whenever it joins, and in whatever order gradients are reduced', async () => {
  const plan = fc.record({
    owners: fc.array(fc.nat(2), { minLength: MICRO_STEPS, maxLength: MICRO_STEPS }),
    order: fc.shuffledSubarray([...Array(MICRO_STEPS).keys()], { minLength: MICRO_STEPS }),
    reduce: fc.shuffledSubarray([1, 2], { minLength: 2 }),
    delays: fc.array(fc.nat(60), { minLength: 3, maxLength: 3 }),
    repeats: fc.array(fc.boolean(), { minLength: MICRO_STEPS, maxLength: MICRO_STEPS }),
  })
  await fc.assert(
    fc.asyncProperty(plan, async ({ owners, order, reduce, delays, repeats }) => {
      const result = await train(async (step) => {
        const member = async (cell: number): Promise<void> => {
          if (cell > 0) {
            await new Promise((resolve) => setTimeout(resolve, delays[cell]))
            await joinStep(cell, step)
          }
          for (const i of order.filter((n) => owners[n] === cell)) {
            await Promise.all([run(cell, step, i), ...(repeats[i] === true ? [run(cell, step, i)] : [])])
          }
        }
        await Promise.all([0, 1, 2].map(member))
        return reduce
      })
      expect(result).toEqual(expected)
    }),
    { numRuns: 8 },
  )
})

test('a member killed in mid-step takes its gradient with it, and its work is done again elsewhere', async () => {
  const result = await train(async (step) => {
    await Promise.all([joinStep(1, step), joinStep(2, step)])
    if (step === 0) {
      await run(1, step, 0)
      const lost = [cellAt(1).forwardBackward(epoch, `${runs}-long`, LONG, OBJECTIVE), run(1, step, 1)]
      const outcomes = Promise.allSettled(lost)
      await run(2, step, 2)
      process.kill(started.supervisor.pidOf(1) ?? 0, 'SIGKILL')
      expect((await outcomes).map((o) => o.status === 'rejected' && (o.reason as { code?: string }).code)).toEqual([
        'E_CELL_UNREACHABLE',
        'E_CELL_UNREACHABLE',
      ])
      await expect(core().reduceGradients(epoch, [cellAt(2).address, cellAt(1).address])).rejects.toMatchObject({
        code: 'E_CELL_UNREACHABLE',
      })
      const again = started.supervisor.restart(1)
      await Promise.all([run(0, step, 3), run(2, step, 0), run(0, step, 1)])
      await again
      await joinStep(1, step)
      await Promise.all([run(1, step, 4), run(2, step, 5)])
      return [1, 2]
    }
    for (let i = 0; i < MICRO_STEPS; i++) await run(i % 3, step, i)
    return [2, 1]
  })
  expect(result).toEqual(expected)
})

test('a satellite that joins late does not wait for the micro-step of the core', async () => {
  epoch += 1
  await core().loadCheckpoint(epoch, folder, 0)
  const state = { isDone: false }
  const work = async (): Promise<void> => {
    await cellAt(0).forwardBackward(epoch, 'long', LONG, OBJECTIVE)
    state.isDone = true
  }
  const busy = work()
  await joinStep(1, 0)
  expect(state.isDone).toBe(false)
  await busy
  const [a, b] = await Promise.all([0, 1].map((i) => cellAt(i).forwardBackward(epoch, 'same', tree(5), OBJECTIVE)))
  expect(b).toEqual(a)
})

function withAdvantage(advantage: number): MicroBatch {
  const batch = tree(7)
  return { ...batch, targetAdvantages: batch.targetAdvantages.map(() => advantage) }
}

test('a gradient held until its advantage is known counts as the direct one, once, over the protocol', async () => {
  epoch += 1
  await core().loadCheckpoint(epoch, folder, 0)
  await joinStep(1, 0)
  const plain: Objective = { ...OBJECTIVE, clipHigh: 999, clipLow: 0.999, entropyWeight: 0 }
  const normOf = async (key: string): Promise<number> =>
    (await core().optimizerStep(epoch, key, { ...ADAM, learningRate: 0 })).gradientNorm
  await core().forwardBackward(epoch, 'direct', withAdvantage(-0.75), plain)
  const direct = await normOf('direct')

  const satellite = started.supervisor.cells[1]
  if (satellite === undefined) throw new Error('there is a satellite')
  const held = await satellite.holdGradient(epoch, 'early', withAdvantage(1), plain)
  expect(held).toMatchObject({ outsideTokens: 0 })
  expect(await satellite.holdGradient(epoch, 'early', withAdvantage(1), plain)).toEqual(held)
  for (let i = 0; i < 2; i++) await satellite.applyHeld(epoch, 'micro-step', 'early', -0.75)
  await core().zeroGradients(epoch)
  await core().reduceGradients(epoch, [satellite.address])
  expect(Math.abs((await normOf('held')) / direct - 1)).toBeLessThan(1e-6)

  await satellite.holdGradient(epoch, 'early', withAdvantage(1), plain)
  await satellite.dropHeld(epoch, ['early'])
  const gone = { code: 'E_TRAINER_NOT_HELD' }
  await expect(satellite.applyHeld(epoch, 'dropped', 'early', 1)).rejects.toMatchObject(gone)
  await satellite.holdGradient(epoch, 'early', withAdvantage(1), plain)
  await joinStep(1, 0)
  await expect(satellite.applyHeld(epoch, 'old-weights', 'early', 1)).rejects.toMatchObject(gone)
})
