/** @file Starts the cell processes of a run, each with an embedded engine. */
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { CellProcessSupervisor } from '../../adapters/cell/process/supervisor.ts'
import type { RunConfig } from '../../config/resolve.ts'
import type { Json } from '../../core/items.ts'

export interface CellPlan {
  readonly config: RunConfig
  readonly vocabSize: number
  readonly logFolder: string
}

/** Sequences one engine keeps beside the running ones, so that a prefix outlives its execution. */
const SPARE_SEQUENCES = 4

export function startCells({ config, vocabSize, logFolder }: CellPlan): Promise<CellProcessSupervisor> {
  const { elastic, training, policy, seed } = config
  const engine: Json = {
    model: modelShape(policy.model, vocabSize),
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

/** Of Llama: rotary base and norm epsilon that its own code defaults to. */
function modelShape(model: RunConfig['policy']['model'], vocabSize: number): Json {
  const { hiddenSize, layers, heads, kvHeads, ffSize } = model
  return {
    vocabSize,
    hiddenSize,
    layers,
    heads,
    kvHeads,
    headDim: hiddenSize / heads,
    ffSize,
    ropeTheta: 10_000,
    normEpsilon: 1e-5,
  }
}
