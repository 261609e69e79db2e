import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { scorerContract } from '../../../ports/scorer.contract.ts'
import { HarborScorer } from './harbor-scorer.ts'

scorerContract(
  'harbor in processes',
  new HarborScorer(),
  (baseFolder) => new ProcessSandbox({ baseFolder, graceMs: 200 }),
)
