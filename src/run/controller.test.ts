import { afterAll, describe, expect, test } from 'vitest'
import { resumedState } from '../scheduler/state.ts'
import { closeRigs, once, Rig } from '../../test/support/toy-rig.ts'

afterAll(closeRigs)

describe.concurrent('a run trains every group exactly once', () => {
  test('under elastic, with cells that change role while executions go on', async () => {
    const rig = new Rig()
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.liveRoleTransfers).toBeGreaterThan(0)
    expect(summary.requestsMoved).toBeGreaterThan(0)
    expect(summary.cellRestarts).toBe(0)
    for (const cell of summary.cells) {
      const { cellId: _, ...times } = cell
      const total = Object.values(times).reduce((a, b) => a + b, 0)
      expect(Math.abs(total - summary.durationMs)).toBeLessThan(5)
    }
    const [first] = rig.of('role-transfer')
    expect(first).toMatchObject({ cell: 0, to: 'training' })
    expect(rig.of('step').every((e) => (e.summary.metrics['staleness_max'] ?? 9) <= 3)).toBe(true)
    expect(rig.of('step')[0]?.summary.metrics).toMatchObject({ gradient_norm: expect.any(Number), staleness_mean: 0 })
  })

  test('under colocate, where nobody trains before the last execution of a burst', async () => {
    const rig = new Rig({ config: { policy: 'colocate', carryOver: 0 } })
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.liveRoleTransfers).toBe(0)
    expect(rig.of('micro-step').every((e) => e.snapshot.waterLevel === 0)).toBe(true)
  })

  test('under async, where the training cell never rolls out before the end', async () => {
    const rig = new Rig({ config: { policy: 'async' } })
    expect(rig.flaws(await rig.run())).toEqual([])
    const returns = rig.of('role-transfer').filter((e) => e.to === 'rollout')
    expect(returns.map((e) => e.snapshot.step)).toEqual([6])
  })

  test('with one cell alone', async () => {
    const rig = new Rig({ config: { cells: 1, carryOver: 0 } })
    expect(rig.flaws(await rig.run())).toEqual([])
  })

  test('with executions that are excluded', async () => {
    const rig = new Rig({ work: { excludeEvery: 4 } })
    expect(rig.flaws(await rig.run())).toEqual([])
  })
})

describe.concurrent('a run survives the death of', () => {
  test('a cell in rollout: its calls go on elsewhere', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'execution-started' && e.snapshot.liveExecutions > 5,
      () => rig.supervisor.kill(2),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(summary.cellRestarts).toBe(1)
    expect(rig.of('cell-recovered').map((e) => e.cell)).toEqual([2])
  })

  test('a satellite in training: its micro-steps are done again', async () => {
    const rig = new Rig({ config: { demandAware: false } })
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.cell === 1,
      () => rig.supervisor.kill(1),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')).toMatchObject([{ cell: 1, reason: expect.stringMatching(/ended|died|down/) }])
  })

  test('the core in training: the steps since the checkpoint are undone and done again', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.cell === 0 && e.step === 3,
      () => rig.supervisor.kill(0),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('steps-undone')).toMatchObject([{ toStep: 2 }])
  })

  test('the core while it publishes: the others take the checkpoint', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'checkpoint',
      () => rig.supervisor.kill(0),
    )
    expect(rig.flaws(await rig.run())).toEqual([])
  })

  test('a cell that hangs: its deadline passes and it is started anew', async () => {
    const rig = new Rig()
    rig.react = once(
      (e) => e.kind === 'micro-step' && e.step === 1,
      () => rig.supervisor.cells[0]?.hangs.add('forwardBackward'),
    )
    const summary = await rig.run()
    expect(rig.flaws(summary)).toEqual([])
    expect(rig.of('cell-failed')[0]?.reason).toMatch(/did not end within 300 ms/)
  })
})

describe.concurrent('a run ends in order', () => {
  test('a cell that dies too often ends the run with a reason', async () => {
    const rig = new Rig({ config: { cellRestarts: 1 } })
    rig.react = (e) => {
      if (e.kind === 'execution-started' || e.kind === 'cell-recovered') rig.supervisor.kill(2)
    }
    const summary = await rig.run()
    expect(summary).toMatchObject({
      outcome: 'failed',
      reason: expect.stringMatching(/cell 2 .* budget is 1; cell 2: /),
    })
  })

  test('books that cannot be kept end the run instead of losing a step', async () => {
    const rig = new Rig()
    rig.work.stepDone = () => {
      throw new Error('the disk is full')
    }
    const summary = await rig.run()
    expect(summary).toMatchObject({ outcome: 'failed', reason: expect.stringMatching(/disk is full/) })
  })

  test('a stopped run can be resumed from its checkpoint, and trains nothing twice', async () => {
    const rig = new Rig()
    let stopped: Promise<void> | undefined
    const first = rig.controller()
    rig.react = once(
      (e) => e.kind === 'step' && e.summary.step === 3,
      () => {
        stopped = first.stop()
      },
    )
    const summary = await first.run()
    await stopped
    expect(summary.outcome).toBe('stopped')
    expect(rig.work.checkpointAt?.step).toBe(2)
    const { groups } = first.state()
    rig.work.stepsUndone(2)
    const point = {
      step: 2,
      bursts: 1,
      firstEpoch: 50,
      groups: groups.map((g) => ({
        groupId: g.groupId,
        dispatchVersion: g.dispatchVersion,
        members: g.members.map((m) => {
          const isScored = m.phase === 'scored'
          return {
            executionId: isScored ? m.executionId : rig.work.newAttempt(m.executionId),
            attempt: isScored ? m.attempt : m.attempt + 1,
            phase: isScored ? ('scored' as const) : ('queued' as const),
          }
        }),
      })),
    }
    expect(rig.flaws(await rig.controller(resumedState(rig.config, point)).run())).toEqual([])
  })
})
