import { describeCellContract } from '../../src/ports/cell.contract.ts'
import { startCells } from '../support/cells.ts'

const MODEL = {
  vocabSize: 64,
  hiddenSize: 32,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 64,
  ropeTheta: 10_000,
  normEpsilon: 1e-6,
}

describeCellContract('an embedded cell in its own process', async () => {
  const started = await startCells('embedded-cell.ts', 2, {
    engine: (index) => ({ model: MODEL, slots: 4, maxContext: 16_384, maxTrainTokens: 128, seed: index }),
  })
  const [core, satellite] = started.supervisor.cells
  if (core === undefined || satellite === undefined) throw new Error('two cells were asked for')
  return { core, satellite, close: () => started.close() }
})
