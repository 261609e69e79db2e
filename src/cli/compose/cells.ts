/** @file Starts the cell processes of a run, each with an embedded engine. */
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { CellProcessSupervisor } from '../../adapters/cell/process/supervisor.ts'
import type { RunConfig } from '../../config/resolve.ts'
import type { Json } from '../../core/items.ts'
import type { ModelShape } from '../../kernels/shape.ts'

export interface CellPlan {
  readonly config: RunConfig
  readonly shape: ModelShape
  readonly logFolder: string
}

/** Sequences one engine keeps beside the running ones, so that a prefix outlives its execution. */
const SPARE_SEQUENCES = 4

export function startCells({ config, shape, logFolder }: CellPlan): Promise<CellProcessSupervisor> {
  const { elastic, training, policy, seed } = config
  const engine: Json = {
    model: { ...shape },
    threads: elastic.threadsPerCell,
    slots: elastic.slotsPerCell + SPARE_SEQUENCES,
    maxContext: policy.model.context,
    maxTrainTokens: Math.max(training.microStepTokens, policy.model.context),
    seed,
  }
  const main = join(fileURLToPath(new URL('../../..', import.meta.url)), 'dist', 'cli', 'main.js')
  return CellProcessSupervisor.start({
    count: elastic.cells,
    slots: elastic.slotsPerCell,
    argv: [process.execPath, main, 'cell'],
    engine: () => engine,
    logFolder,
  })
}
