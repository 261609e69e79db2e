import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { opencode } from './recipes/opencode.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const SHELL = { name: 'bash', argumentsFor: (command: string) => ({ command, description: 'Runs a command' }) }

describe.each([opencode.defaultVersion])('version %s', (version) => {
  const folder = new PackagedHarness(opencode, { version, cacheFolder }).folder
  const installed = isInstalled({ folder, packageName: opencode.packageName, version })
  // npm run test:harness installs it.
  describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)('installed', () => {
    harnessContract(
      'opencode',
      () => new PackagedHarness(opencode, { version, cacheFolder }),
      makeSandbox,
      'all',
      SHELL,
    )
    harnessContract(
      'opencode with events',
      () => new PackagedHarness(opencode, { version, cacheFolder, events: true }),
      makeSandbox,
      'essentials',
      SHELL,
    )
  })
})
