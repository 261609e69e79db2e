import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { qwenCode } from './recipes/qwen-code.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const SHELL = { name: 'run_shell_command', argumentsFor: (command: string) => ({ command, is_background: false }) }

describe.each(['0.24.4', '0.15.10'])('version %s', (version) => {
  const folder = new PackagedHarness(qwenCode, { version, cacheFolder }).folder
  const installed = isInstalled({ folder, packageName: qwenCode.packageName, version })
  // npm run test:harness installs it.
  describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)('installed', () => {
    harnessContract(
      'qwen-code',
      () => new PackagedHarness(qwenCode, { version, cacheFolder }),
      makeSandbox,
      'all',
      SHELL,
    )
    harnessContract(
      'qwen-code with events',
      () => new PackagedHarness(qwenCode, { version, cacheFolder, events: true }),
      makeSandbox,
      'essentials',
      SHELL,
    )
  })
})
