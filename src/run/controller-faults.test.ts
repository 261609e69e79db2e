import { afterAll, describe, expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import type { ToyCell } from '../../test/support/toy-cells.ts'
import { closeRigs, once, Rig } from '../../test/support/toy-rig.ts'

afterAll(closeRigs)

/** Deadlines that hurried time does not reach. */
const long = {
  cancelMs: 1e6,
  switchMs: 1e6,
  weightsMs: 1e6,
  trainMs: 1e6,
  reduceMs: 1e6,
  optimizeMs: 1e6,
  checkpointMs: 1e6,
  restartMs: 1e6,
}

const full = (): GyreError =>
  new GyreError('the cell failed unexpectedly: ENOSPC: no space left on device, write', {
    boundary: 'cell',
    code: 'E_CELL_INTERNAL',
  })

/** A fault that shows so many times. */
function times(count: number, fault: () => Error): () => Error | undefined {
  let left = count
  return () => (left-- > 0 ? fault() : undefined)
}

const cellOf = (rig: Rig, index: number): ToyCell => {
  const cell = rig.supervisor.cells[index]
  if (cell === undefined) throw new Error(`no cell ${index}`)
  return cell
}

describe.concurrent('a cell dies in every phase: kill -9 at the first, and at the second', () => {
  const phases = [
    ['pinKv', 1],
    ['fetchKv', 2],
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
  ] as const
  for (const [verb, index] of phases) {
    for (const nth of [1, 2]) {
      test(`${verb} of cell ${index}, time ${nth}`, async () => {
        const rig = new Rig({ config: { kvHandover: true, demandAware: false }, work: { longest: 60 } })
        let seen = 0
        // The first loading of weights comes before the run.
        rig.react = once(
          (e) => e.kind === 'execution-started',
          () => {
            cellOf(rig, index).faults.set(verb, () => {
              if (++seen === nth) rig.supervisor.kill(index)
              return undefined
            })
          },
        )
        const summary = await rig.run()
        expect(rig.flaws(summary)).toEqual([])
        expect(seen).toBeGreaterThanOrEqual(nth)
        expect(summary.cellRestarts).toBe(1)
        expect(rig.of('cell-recovered').map((e) => e.cell)).toEqual([index])
      })
    }
  }
})

describe.concurrent('heartbeats', () => {
  const deadlines = { heartbeatMs: 20, healthMs: 40, trainMs: 5000 }

  test('a cell in rollout that answers nothing is started anew', async () => {
    const rig = new Rig({ deadlines })
    rig.react = once(
      (e) => e.kind === 'execution-started',
      () => cellOf(rig, 2).hangs.add('health'),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([
      { cell: 2, reason: expect.stringMatching(/2 heartbeats in a row missed .*did not end within 40 ms/) },
    ])
  })

  test('tell the scheduler how many slots generate', async () => {
    const rig = new Rig({
      config: { cellSlots: 3, overCommit: 2, totalSteps: 4 },
      deadlines: { ...deadlines, heartbeatMs: 5 },
      work: { longest: 60 },
    })
    const controller = rig.controller()
    const summary = await controller.run()
    expect(rig.flaws(summary)).toEqual([])
    const { busyShare } = controller.state().load
    expect(busyShare).toBeGreaterThan(0)
    expect(busyShare).toBeLessThanOrEqual(2)
    expect(rig.of('step').every((e) => (e.summary.metrics['over_commit'] ?? 0) >= 1)).toBe(true)
  })

  test('a cell that only computes for long is left in peace', async () => {
    const rig = new Rig({ deadlines })
    for (const cell of rig.supervisor.cells) cell.delays.set('forwardBackward', 150)
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(0)
  })

  test('a cell that serves weights it should not have is started anew', async () => {
    const rig = new Rig({ deadlines, work: { longest: 150 } })
    rig.react = once(
      (e) => e.kind === 'execution-started',
      () => {
        const { process } = cellOf(rig, 2)
        if (process !== undefined) process.version = 77
      },
    )
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([
      { cell: 2, reason: expect.stringMatching(/serves policy version 77 instead of 0/) },
    ])
  })

  test('a cell that closed itself is started anew', async () => {
    const rig = new Rig({ deadlines, work: { longest: 150 } })
    rig.react = once(
      (e) => e.kind === 'execution-started',
      () => {
        const { process } = cellOf(rig, 2)
        if (process !== undefined) process.mode = 'training'
      },
    )
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([{ cell: 2, reason: expect.stringMatching(/admits no generation/) }])
  })
})

/** One of whose cells becomes slow once it is known how fast they are. */
function withSlow(index: number): Rig {
  const rig = new Rig({
    config: { demandAware: false, totalSteps: 12 },
    deadlines: { ...long, trainMs: 600_000, heartbeatMs: 1e6 },
    speed: 50,
  })
  let trained = 0
  rig.react = (e) => {
    if (e.kind === 'micro-step' && ++trained === 16) cellOf(rig, index).delays.set('forwardBackward', 400)
    if (e.kind === 'cell-slow' && index === 0) cellOf(rig, 0).delays.clear()
  }
  return rig
}

describe.concurrent('a slow cell', () => {
  test('as a satellite: its work goes to others, long before its deadline', async () => {
    const rig = withSlow(1)
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(rig.of('cell-slow')[0]).toMatchObject({ cell: 1, waitedMs: expect.any(Number) })
    expect(rig.of('cell-slow')[0]?.waitedMs).toBeLessThan(20_000)
    expect(rig.of('cell-failed')[0]).toMatchObject({
      cell: 1,
      reason: expect.stringMatching(/micro-step .* did not end/),
    })
  })

  test('as the core: it is told of and waited for, since nobody can take its place', async () => {
    const rig = withSlow(0)
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-slow').map((e) => e.cell)).toContain(0)
    expect(summary.cellRestarts).toBe(0)
  })
})

describe.concurrent('a full disk', () => {
  test('is waited for while the core saves: no cell is restarted, and the run goes on by itself', async () => {
    const rig = new Rig({ speed: 50, deadlines: long })
    cellOf(rig, 0).faults.set('saveCheckpoint', times(2, full))
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('disk-full').map((e) => e.retryInMs)).toEqual([1000, 2000])
    expect(summary.cellRestarts).toBe(0)
  })

  test('is waited for while the store keeps the books', async () => {
    const rig = new Rig({ speed: 50, deadlines: long })
    const fault = times(2, () => new GyreError('the disk is full', { boundary: 'store', code: 'E_STORE_DISK' }))
    const keep = rig.work.checkpoint.bind(rig.work)
    rig.work.checkpoint = (summary) => {
      const error = fault()
      return error === undefined ? keep(summary) : Promise.reject(error)
    }
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('disk-full')).toHaveLength(2)
    expect(summary.cellRestarts).toBe(0)
  })

  test('that stays full ends the run, which a resume can go on from, and burns no restart', async () => {
    const rig = new Rig({ speed: 5000, deadlines: { ...long, heartbeatMs: 1e9 } })
    cellOf(rig, 0).faults.set('saveCheckpoint', full)
    const summary = await rig.run()
    expect(summary).toMatchObject({
      outcome: 'failed',
      reason: expect.stringMatching(/disk stayed full for 30 minutes: free space, then resume.*ENOSPC/),
      cellRestarts: 0,
    })
    expect(rig.work.checkpointAt).toBeUndefined()
  })

  test('and a core that dies meanwhile: its fresh process is never saved as the trained one', async () => {
    const rig = new Rig({ speed: 50, deadlines: long })
    cellOf(rig, 0).faults.set('saveCheckpoint', times(1, full))
    rig.react = once(
      (e) => e.kind === 'disk-full',
      () => rig.supervisor.kill(0),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('steps-undone')).toHaveLength(1)
  })

  test('and a stop meanwhile: the run ends at once', async () => {
    const rig = new Rig({ deadlines: long })
    cellOf(rig, 0).faults.set('saveCheckpoint', full)
    const controller = rig.controller()
    rig.react = once(
      (e) => e.kind === 'disk-full',
      () => void controller.stop(),
    )
    expect((await controller.run()).outcome).toBe('stopped')
  })
})

describe.concurrent('a hand-over', () => {
  const config = { kvHandover: true, demandAware: false }

  test('brings what is cached to the destinations before the source is asked to stop', async () => {
    const rig = new Rig({ config, work: { longest: 80 } })
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.tokensHandedOver).toBeGreaterThan(0)
    const moves = rig.of('role-transfer').filter((e) => e.tokensHandedOver > 0)
    expect(moves.length).toBeGreaterThan(0)
    for (const move of moves) {
      expect(move.bytesHandedOver).toBe(8 * move.tokensHandedOver)
      expect(move.handoverMs + move.cancelMs + move.enterMs).toBeCloseTo(move.durationMs, 3)
    }
    const perStep = rig.of('step').map((e) => e.summary.metrics['handed_over_tokens'] ?? 0)
    expect(perStep.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(summary.tokensHandedOver)
  })

  test('that hangs costs its deadline and nothing else', async () => {
    const rig = new Rig({ config, work: { longest: 80 }, deadlines: { handoverMs: 30 } })
    for (const cell of rig.supervisor.cells) cell.hangs.add('fetchKv')
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(0)
    expect(summary.tokensHandedOver).toBe(0)
    expect(rig.of('hand-over-missed').length).toBeGreaterThan(0)
    expect(summary.liveRoleTransfers).toBeGreaterThan(0)
  })
})

describe.concurrent('a standalone engine', () => {
  const config = { cells: 2, standaloneSlots: [8] }

  test('takes every published version', async () => {
    const rig = new Rig({ config })
    expect(rig.flaws(await rig.run())).toEqual([])
    expect(rig.standalone[0]?.taken).toEqual([0, 2, 4, 6])
  })

  test('that goes away loses its calls to the cells, and serves again when it answers', async () => {
    const rig = new Rig({ config, deadlines: { heartbeatMs: 10, healthMs: 50 }, work: { longest: 60 } })
    const [engine] = rig.standalone
    rig.react = (e) => {
      if (engine === undefined) return
      if (e.kind === 'execution-finished' && e.snapshot.step === 0) engine.isUp = false
      if (e.kind === 'step' && e.summary.step === 3) engine.isUp = true
    }
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('standalone-failed')).toHaveLength(1)
    expect(rig.of('standalone-recovered')).toHaveLength(1)
    expect(engine?.version).toBe(6)
    expect(summary.cellRestarts).toBe(0)
  })

  test('that never comes back does not keep a run from ending', async () => {
    const rig = new Rig({ config, deadlines: { heartbeatMs: 10, healthMs: 50 } })
    for (const engine of rig.standalone) engine.isUp = false
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('standalone-failed')).toHaveLength(1)
  })
})

test('a straggler is cut when its time has come, by a wake alone', async () => {
  const rig = new Rig({ config: { stragglerQuorum: 2 / 3, stragglerGrace: 0.5 }, work: { longest: 400 } })
  const summary = await rig.run()
  expect(rig.flaws(summary)).toEqual([])
  expect(summary.executionsCut).toBeGreaterThan(0)
  expect(rig.of('execution-cut')).toHaveLength(summary.executionsCut)
})
