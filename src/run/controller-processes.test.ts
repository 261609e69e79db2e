import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { monotonicClock, realTimers } from '../host/clock.ts'
import { initialState } from '../scheduler/state.ts'
import { startBigramCells } from '../../test/support/cells.ts'
import type { StartedCells } from '../../test/support/cells.ts'
import { withLeversOff } from '../../test/support/scheduler-config.ts'
import { PARAMETERS } from '../../test/support/toy-cells.ts'
import { ToyForwarding, ToyWork } from '../../test/support/toy-cluster.ts'
import { ElasticController } from './controller.ts'
import type { ControllerEvent } from './controller-types.ts'

const config = withLeversOff({
  policy: 'elastic',
  cells: 2,
  cellSlots: 12,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 2,
  carryOver: 1,
  totalSteps: 8,
  trainingCells: 1,
  demandAware: false,
  placement: 'balanced',
  executionAttempts: 2,
  cellRestarts: 3,
  excludedGroupsLimit: 4,
})
const patience = 20_000
const deadlines = {
  cancelMs: patience,
  switchMs: patience,
  weightsMs: patience,
  trainMs: patience,
  reduceMs: patience,
  optimizeMs: patience,
  checkpointMs: patience,
  restartMs: patience,
  handoverMs: patience,
  heartbeatMs: patience,
  healthMs: patience,
}

test('kill -9 of real cells in rollout and in training, core and satellite: every group is trained once', async () => {
  const cells = await startBigramCells(2, { vocabSize: PARAMETERS, tokenDelayMs: 1, stepDelayMs: 5 }, { slots: 12 })
  const forwarding = new ToyForwarding()
  const work = new ToyWork({ seed: 3, groupSize: 2, anyTokens: true }, forwarding)
  try {
    const folder = join(work.folder, 'start')
    mkdirSync(folder)
    await cells.supervisor.cells[0]?.saveCheckpoint(1, folder)
    const killed: string[] = []
    const controller = new ElasticController({
      initial: initialState(config),
      supervisor: cells.supervisor,
      forwarding,
      standalone: [],
      work,
      clock: monotonicClock,
      timers: realTimers,
      deadlines,
      checkpointFolder: folder,
      onEvent: (event) => {
        const wanted = victim(event)
        if (wanted === undefined || killed.includes(wanted.name)) return
        killed.push(wanted.name)
        process.kill(cells.supervisor.pidOf(wanted.cell) ?? 0, 'SIGKILL')
      },
    })
    work.controller = controller
    const summary = await controller.run()
    expect(summary).toMatchObject({ outcome: 'done', steps: 8, cellRestarts: 3 })
    expect(killed.toSorted()).toEqual(['core in training', 'in rollout', 'satellite in training'])
    expect(work.problems).toEqual([])
    expect(work.steps.map((s) => s.step)).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
    expect(new Set(work.consumed).size).toBe(16)
    const epochs = controller.state().cells.map((cell) => cell.epoch)
    expect(await weightsOf(cells, work, 1, epochs)).toEqual(await weightsOf(cells, work, 0, epochs))
  } finally {
    work.close()
    await cells.close()
  }
}, 60_000)

/** Whom to kill now: each role once. */
function victim(event: ControllerEvent): { readonly name: string; readonly cell: number } | undefined {
  const live = event.snapshot.cells[1]?.executions ?? 0
  if (event.kind === 'execution-finished' && live > 2) return { name: 'in rollout', cell: 1 }
  if (event.kind !== 'micro-step') return undefined
  if (event.cell === 1) return { name: 'satellite in training', cell: 1 }
  return event.step % 2 === 1 ? { name: 'core in training', cell: 0 } : undefined
}

async function weightsOf(
  cells: StartedCells,
  work: ToyWork,
  index: number,
  epochs: readonly number[],
): Promise<unknown> {
  const folder = join(work.folder, `end-${index}`)
  mkdirSync(folder)
  await cells.supervisor.cells[index]?.saveCheckpoint(epochs[index] ?? 0, folder)
  const saved = JSON.parse(readFileSync(join(folder, 'bigram.json'), 'utf8')) as { readonly state: readonly unknown[] }
  return saved.state[0]
}
