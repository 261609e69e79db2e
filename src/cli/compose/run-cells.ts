/** @file What a run does with its cells outside the elastic loop: first weights, cold start, loading. */
import { join } from 'node:path'
import type { RunConfig } from '../../config/resolve.ts'
import { GyreError } from '../../core/errors.ts'
import type { Cell } from '../../ports/cell.ts'
import type { CheckpointRow, Store } from '../../ports/store.ts'
import { encodeDemonstration, encodeExcerpts } from '../../run/demonstration.ts'
import { warmstart } from '../../run/warmstart.ts'
import type { Policy } from './policy.ts'
import type { RunProgress } from './progress.ts'
import type { RunFiles } from './run-files.ts'
import { warmstartOptimizer } from './schedule.ts'

/** The controller's epochs begin at 1 too; nobody else commands the cells before it does. */
const FIRST_EPOCH = 1

export interface RunCellsDeps {
  readonly config: RunConfig
  readonly cells: readonly Cell[]
  readonly store: Store
  readonly policy: Policy
  readonly files: RunFiles
  readonly progress: RunProgress
  readonly stop: AbortSignal
}

/** Leaves the first weights in the checkpoint of step 0. */
export async function coldStart(deps: RunCellsDeps): Promise<void> {
  const { config, cells, store, policy, files } = deps
  const [core] = cells
  if (core === undefined) return
  if (config.policy.init === 'folder') await core.loadCheckpoint(FIRST_EPOCH, config.policy.folder ?? '', 0)
  if (config.warmstart.enabled) await imitate(deps)
  const folder = files.checkpoint(0)
  await core.saveCheckpoint(FIRST_EPOCH, folder)
  policy.copyTokenizer(folder)
  store.commitCheckpoint({ step: 0, policyVersion: 0, burst: 0, folder: files.relative(folder) }, [])
}

async function imitate({ config, cells, policy, progress, stop }: RunCellsDeps): Promise<void> {
  const { steps, excerptSteps, batchTokens } = config.warmstart
  const whole = policy.conversations.map((items) => encodeDemonstration(policy.codec, items))
  const excerpts = policy.plainConversations.flatMap((items) => encodeExcerpts(policy.codec, items))
  const total = excerptSteps + steps
  const [core] = cells
  if (core !== undefined) {
    await Promise.all(cells.slice(1).map((cell) => cell.pullWeights(FIRST_EPOCH, core.address, 0)))
  }
  const loss = await warmstart(cells, FIRST_EPOCH, {
    lessons: [
      { demonstrations: excerpts, steps: excerptSteps, batchTokens },
      { demonstrations: whole, steps, batchTokens },
    ],
    maxMicroStepTokens: config.training.microStepTokens,
    optimizer: warmstartOptimizer(config),
    seed: config.seed,
    onStep: (step, value) => {
      stop.throwIfAborted()
      progress.within(`cold start ${step}/${total}, loss ${value.toFixed(3)}`)
    },
  })
  progress.note(`cold start done: ${total} steps on ${whole.length} demonstrations, loss ${loss.toFixed(3)}`)
}

/** @throws GyreError E_STORE_NO_CHECKPOINT. */
export function lastCheckpoint(store: Store): CheckpointRow {
  const checkpoint = store.latestCheckpoint()
  if (checkpoint !== undefined) return checkpoint
  throw new GyreError('the run has no checkpoint to load', { boundary: 'store', code: 'E_STORE_NO_CHECKPOINT' })
}

/** A cell, fresh or not, into rollout with these weights. */
export async function loadCell(cell: Cell, checkpoint: CheckpointRow, files: RunFiles): Promise<void> {
  const epoch = Math.max(FIRST_EPOCH, (await cell.hello()).epoch)
  await cell.enterTraining(epoch)
  await cell.loadCheckpoint(epoch, join(files.folder, checkpoint.folder), checkpoint.policyVersion)
  await cell.enterRollout(epoch)
}
