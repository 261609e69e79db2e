/** @file Starts the cell processes of a run, each with an embedded engine. */
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { CellProcessSupervisor } from '../../adapters/cell/process/supervisor.ts'
import type { RunConfig } from '../../config/resolve.ts'
import { hasCode } from '../../core/errors.ts'
import type { Json } from '../../core/items.ts'
import type { ModelShape } from '../../kernels/shape.ts'

export interface CellPlan {
  readonly config: RunConfig
  readonly shape: ModelShape
  readonly logFolder: string
}

/** Sequences one engine keeps beside the running ones, so that a prefix outlives its execution. */
const SPARE_SEQUENCES = 4
const START_TRIES = 5

/** Program and arguments of a cell process. */
export function cellProgram(): readonly string[] {
  return [process.execPath, join(fileURLToPath(new URL('../../..', import.meta.url)), 'dist', 'cli', 'main.js'), 'cell']
}

/** What a cell's engine is made with. */
export function engineOptions(
  { training, policy, seed }: RunConfig,
  shape: ModelShape,
  { threads, slots }: { readonly threads: number; readonly slots: number },
): { readonly [key: string]: Json } {
  return {
    model: { ...shape },
    threads,
    slots: slots + SPARE_SEQUENCES,
    maxContext: policy.model.context,
    maxTrainTokens: Math.max(training.microStepTokens, policy.model.context),
    seed,
  }
}

/** Starts the cells; when one is killed before it is up, all of them again. @throws GyreError E_CELL_START. */
export async function startCells(plan: CellPlan): Promise<CellProcessSupervisor> {
  for (let tries = 1; ; tries++) {
    try {
      return await startOnce(plan)
    } catch (error) {
      if (!hasCode(error, 'E_CELL_START') || !error.retryable || tries === START_TRIES) throw error
    }
  }
}

function startOnce({ config, shape, logFolder }: CellPlan): Promise<CellProcessSupervisor> {
  const { cells, slotsPerCell: slots, threadsPerCell: threads } = config.elastic
  return CellProcessSupervisor.start({
    count: cells,
    slots,
    argv: (index) => [...pinned(config, index), ...cellProgram()],
    engine: () => engineOptions(config, shape, { threads, slots }),
    logFolder,
  })
}

/**
 * The cells divide the processors among them, so that a role change moves processors as it moves devices. More cells
 * than processors take turns: cells that train together, which are neighbors, then sit on different ones.
 */
function pinned({ elastic }: RunConfig, index: number): readonly string[] {
  if (!elastic.pinCells) return []
  const processors = availableParallelism()
  const each = Math.max(1, Math.floor(processors / elastic.cells))
  const first = (index * each) % processors
  const last = first + each - 1
  return ['taskset', '--cpu-list', `${first}-${last}`]
}
