import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { GyreError } from '../../../core/errors.ts'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../../sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { installPackage, type PackageInstall } from './install-package.ts'
import { PackagedHarness } from './packaged-harness.ts'
import { pi } from './recipes/pi.ts'

const cache = process.env['GYRE_CACHE']
const cacheFolder = cache === undefined ? {} : { cacheFolder: join(cache, 'harness') }
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })

harnessContract('pi', () => new PackagedHarness(pi, { ...cacheFolder, extraArgs: ['--tools', 'bash'] }), makeSandbox)
harnessContract(
  'pi with events',
  () => new PackagedHarness(pi, { ...cacheFolder, events: true }),
  makeSandbox,
  'essentials',
)

const probe = await probeBubblewrap()
const reason = probe.works ? '' : ` (not tested: ${probe.reason})`
describe.skipIf(!probe.works)(`pi${reason}`, () => {
  harnessContract(
    'pi in bubblewrap',
    () => new PackagedHarness(pi, cacheFolder),
    (baseFolder) => new BubblewrapSandbox({ baseFolder, graceMs: 200 }),
    'essentials',
  )
})

describe('installing a package', () => {
  let folder = ''
  let said: string[] = []
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'gyre-install-'))
    said = []
  })
  afterEach(() => rmSync(folder, { recursive: true, force: true }))

  const install = (over: Partial<PackageInstall> = {}): PackageInstall => ({
    packageName: 'picocolors',
    version: '1.1.1',
    folder: join(folder, 'cache', 'picocolors-1.1.1'),
    deadlineMs: 60_000,
    progress: (message) => said.push(message),
    ...over,
  })

  test('happens once when several want it, and needs no npm afterwards', async () => {
    await Promise.all([installPackage(install()), installPackage(install()), installPackage(install())])
    expect(said.filter((line) => line.startsWith('installing'))).toHaveLength(1)
    const path = process.env['PATH']
    process.env['PATH'] = '/nowhere'
    try {
      await installPackage(install())
    } finally {
      process.env['PATH'] = path
    }
    expect(said.filter((line) => line.startsWith('installing'))).toHaveLength(1)
  })

  test('takes over the lock of an installer that died', async () => {
    const lock = `${install().folder}.lock`
    mkdirSync(lock, { recursive: true })
    utimesSync(lock, new Date(0), new Date(0))
    await installPackage(install())
    expect(said.some((line) => line.startsWith('installed'))).toBe(true)
  })

  test('replaces a folder that holds something else', async () => {
    mkdirSync(install().folder, { recursive: true })
    writeFileSync(join(install().folder, 'junk'), '')
    await installPackage(install())
    expect(said.some((line) => line.startsWith('installed'))).toBe(true)
  })

  test('gives up on a lock that stays fresh', async () => {
    mkdirSync(`${install().folder}.lock`, { recursive: true })
    const error: unknown = await installPackage(install({ deadlineMs: 300 })).catch((e: unknown) => e)
    expect(error).toMatchObject({ code: 'E_HARNESS_INSTALL' })
    expect(said[0]).toContain('waiting')
  })

  test('says what npm said when it fails', async () => {
    const error: unknown = await installPackage(install({ version: '0.0.0-none' })).catch((e: unknown) => e)
    if (!(error instanceof GyreError)) throw new Error(`expected a GyreError, got ${String(error)}`)
    expect(error).toMatchObject({ code: 'E_HARNESS_INSTALL', boundary: 'harness', retryable: true })
    expect(error.message).toContain('picocolors@0.0.0-none')
  })
})
