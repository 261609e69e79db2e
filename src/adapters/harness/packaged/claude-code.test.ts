import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { claudeCode } from './recipes/claude-code.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const BASH = { name: 'Bash', argumentsFor: (command: string) => ({ command }) }

describe.each(['2.1.332', '2.1.197'])('version %s', (version) => {
  const folder = new PackagedHarness(claudeCode, { version, cacheFolder }).folder
  const installed = isInstalled({ folder, packageName: claudeCode.packageName, version })
  // npm run test:harness installs it.
  describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)('installed', () => {
    harnessContract(
      'claude-code',
      () => new PackagedHarness(claudeCode, { version, cacheFolder }),
      makeSandbox,
      'all',
      BASH,
    )
    harnessContract(
      'claude-code with events',
      () => new PackagedHarness(claudeCode, { version, cacheFolder, events: true }),
      makeSandbox,
      'essentials',
      BASH,
    )
  })
})
