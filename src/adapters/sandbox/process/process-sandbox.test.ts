import { sandboxContract } from '../../../ports/sandbox.contract.ts'
import { ProcessSandbox } from './process-sandbox.ts'

sandboxContract('process', {
  make: (baseFolder) => new ProcessSandbox({ baseFolder, graceMs: 500 }),
  module: 'adapters/sandbox/process/process-sandbox.ts',
  className: 'ProcessSandbox',
})
