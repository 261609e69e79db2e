import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { geminiCli } from './recipes/gemini-cli.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const SHELL = { name: 'run_shell_command', argumentsFor: (command: string) => ({ command }) }

describe.each([geminiCli.defaultVersion])('version %s', (version) => {
  const folder = new PackagedHarness(geminiCli, { version, cacheFolder }).folder
  const installed = isInstalled({ folder, packageName: geminiCli.packageName, version })
  // npm run test:harness installs it.
  describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)('installed', () => {
    harnessContract(
      'gemini-cli',
      () => new PackagedHarness(geminiCli, { version, cacheFolder }),
      makeSandbox,
      'all',
      SHELL,
    )
    harnessContract(
      'gemini-cli with events',
      () => new PackagedHarness(geminiCli, { version, cacheFolder, events: true }),
      makeSandbox,
      'essentials',
      SHELL,
    )
  })
})
