import { describeCellContract } from '../../../ports/cell.contract.ts'
import { startBigramCells } from '../../../../test/support/cells.ts'

describeCellContract('a bigram cell in its own process', async () => {
  const started = await startBigramCells(2, { vocabSize: 8, tokenDelayMs: 1, maxContext: 2048 })
  const [core, satellite] = started.supervisor.cells
  if (core === undefined || satellite === undefined) throw new Error('two cells were asked for')
  return { core, satellite, close: () => started.close() }
})
