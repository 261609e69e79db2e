import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../../sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import type { RecipeContext } from './recipe.ts'
import { codex } from './recipes/codex.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const makeBubblewrap = (baseFolder: string): BubblewrapSandbox => new BubblewrapSandbox({ baseFolder, graceMs: 200 })
const EXEC = { name: 'exec_command', argumentsFor: (cmd: string) => ({ cmd }) }

const probe = await probeBubblewrap()
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
  describe.skipIf(!probe.works)('without network', () => {
    harnessContract(
      'codex in bubblewrap',
      () => new PackagedHarness(codex, { cacheFolder }),
      makeBubblewrap,
      'essentials',
      EXEC,
    )
  })
})

describe('what Codex says of its end', () => {
  const temp = mkdtempSync(join(tmpdir(), 'gyre-codex-'))
  afterAll(() => rmSync(temp, { recursive: true, force: true }))
  const file = join(temp, 'stdout')
  const ended: ProcessEnd = { exitCode: 0, signal: undefined, timedOut: false, durationMs: 1 }
  const context = { events: true } as unknown as RecipeContext

  test.each([
    ['{"type":"turn.failed","error":{"message":"no"}}\n', { exitCode: 1, detail: 'no' }],
    ['{"type":"turn.failed","error":{"message":"no"}}\n{"type":"turn.completed"}\n', { exitCode: 0 }],
    ['{"type":"turn.completed"}\n{"type":"turn.fail', { exitCode: 0 }],
    ['', { exitCode: 0 }],
  ])('%j', (stdout, expected) => {
    writeFileSync(file, stdout)
    expect(codex.classifyEnd?.(ended, file, file, context)).toEqual({ ...ended, ...expected })
  })
})
