import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { codex } from './recipes/codex.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const EXEC = { name: 'exec_command', argumentsFor: (cmd: string) => ({ cmd }) }

const version = codex.defaultVersion
const folder = new PackagedHarness(codex, { cacheFolder }).folder
const installed = isInstalled({ folder, packageName: codex.packageName, version })
// npm run test:harness installs it.
describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)(`version ${version}`, () => {
  harnessContract('codex', () => new PackagedHarness(codex, { cacheFolder }), makeSandbox, 'all', EXEC)
  harnessContract(
    'codex with events',
    () => new PackagedHarness(codex, { cacheFolder, events: true }),
    makeSandbox,
    'essentials',
    EXEC,
  )
})
