/**
 * @file Installs one npm package into a cache folder, once for all processes of this machine.
 *
 * The package is installed beside its place and renamed into it, so a folder that exists is complete. A lock spares
 * the others the work; it is kept fresh while its holder lives, and one that went stale is taken over.
 */
import { randomBytes } from 'node:crypto'
import { readFileSync, rmSync, statSync } from 'node:fs'
import { mkdir, rename, rm, utimes, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import { Guard } from '../../../host/guard.ts'
import { lastLine } from '../../../host/last-line.ts'
import { supervise } from '../../../host/supervise.ts'

export interface PackageInstall {
  readonly packageName: string
  readonly version: string
  /** Holds `node_modules` afterwards. */
  readonly folder: string
  /** For waiting and installing together. [ms] */
  readonly deadlineMs: number
  readonly progress: (message: string) => void
}

const LOCK_REFRESH_MS = 2000
const LOCK_STALE_MS = 15_000
const LOCK_POLL_MS = 200
const PROGRESS_MS = 5000

/** True when the folder holds exactly this version. */
export function isInstalled(install: Pick<PackageInstall, 'folder' | 'packageName' | 'version'>): boolean {
  try {
    const text = readFileSync(join(install.folder, 'node_modules', install.packageName, 'package.json'), 'utf8')
    return (JSON.parse(text) as { readonly version?: unknown }).version === install.version
  } catch {
    return false
  }
}

/**
 * Returns at once when it is installed already; needs no network then.
 * @throws GyreError E_HARNESS_INSTALL.
 */
export async function installPackage(install: PackageInstall): Promise<void> {
  if (isInstalled(install)) return
  const deadline = performance.now() + install.deadlineMs
  await mkdir(dirname(install.folder), { recursive: true })
  const lock = `${install.folder}.lock`
  let announced = false
  while (!(await tryLock(lock))) {
    if (isInstalled(install)) return
    if (performance.now() > deadline) {
      throw installError(install, `another process has been installing it for too long: if none is, remove ${lock}`)
    }
    if (!announced) install.progress(`waiting for another process that installs ${install.packageName}`)
    announced = true
    await sleep(LOCK_POLL_MS)
  }
  const refresh = setInterval(() => void utimes(lock, new Date(), new Date()).catch(() => undefined), LOCK_REFRESH_MS)
  try {
    if (!isInstalled(install)) await installInto(install, deadline - performance.now())
  } finally {
    clearInterval(refresh)
    rmSync(lock, { recursive: true, force: true })
  }
}

async function tryLock(lock: string): Promise<boolean> {
  try {
    await mkdir(lock)
    return true
  } catch {
    const age = Date.now() - (statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? Date.now())
    // Two that take a stale lock over at once both install; the rename at the end keeps one of the two.
    if (age > LOCK_STALE_MS) await rm(lock, { recursive: true, force: true })
    return false
  }
}

async function installInto(install: PackageInstall, timeoutMs: number): Promise<void> {
  const path = process.env['PATH'] ?? ''
  const npm = findProgram('npm', path, '/')
  if (npm === undefined) throw installError(install, `there is no npm in PATH ${path}`)
  const id = randomBytes(6).toString('hex')
  const temp = `${install.folder}.new-${id}`
  const guard = new Guard(`GYRE_INSTALL=${id}`, temp)
  await mkdir(temp)
  const started = performance.now()
  const what = `${install.packageName} ${install.version}`
  install.progress(`installing ${what} into ${install.folder} (once)`)
  const seconds = (): number => Math.round((performance.now() - started) / 1000)
  const ticker = setInterval(() => install.progress(`still installing ${what}, ${seconds()} s so far`), PROGRESS_MS)
  try {
    await runNpm(install, npm, temp, id, guard, timeoutMs)
    await putInPlace(install, temp)
    install.progress(`installed ${what} in ${seconds()} s`)
  } finally {
    clearInterval(ticker)
    await rm(temp, { recursive: true, force: true })
    guard.dismiss()
  }
}

async function runNpm(
  install: PackageInstall,
  npm: string,
  temp: string,
  id: string,
  guard: Guard,
  timeoutMs: number,
): Promise<void> {
  const stderrFile = join(temp, 'npm.stderr')
  await writeFile(join(temp, 'package.json'), '{"private":true}\n')
  const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', '--save-exact']
  const end = await supervise(
    {
      argv: [npm, 'install', '--prefix', temp, ...flags, `${install.packageName}@${install.version}`],
      // npm needs the user's own settings (registry, proxy, certificates): this is no sandbox.
      env: { ...(process.env as Record<string, string>), GYRE_INSTALL: id },
      cwd: temp,
      timeoutMs: Math.max(1, timeoutMs),
      graceMs: 2000,
      stdoutFile: join(temp, 'npm.stdout'),
      stderrFile,
      outputBytes: 2 ** 20,
      limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
      marker: `GYRE_INSTALL=${id}`,
      folder: temp,
    },
    guard,
    new AbortController().signal,
  ).catch((error: unknown) => {
    throw installError(install, errorText(error), error)
  })
  if (end.timedOut) throw installError(install, `npm was not done after ${Math.round(install.deadlineMs / 1000)} s`)
  if (end.exitCode !== 0) throw installError(install, `npm says "${npmReason(stderrFile)}"`)
}

/** npm names the reason first and ends with where its log is. */
function npmReason(stderrFile: string): string {
  const first = readFileSync(stderrFile, 'utf8')
    .split('\n')
    .find((line) => /^npm (?:error|ERR!) (?!code|A complete log)/.test(line))
  return first?.replace(/^npm (?:error|ERR!) /, '') ?? lastLine(stderrFile)
}

async function putInPlace(install: PackageInstall, temp: string): Promise<void> {
  if (!isInstalled({ ...install, folder: temp })) throw installError(install, 'npm did not bring that version')
  // A folder that is there and not usable is a leftover from outside; one that is usable came from another process.
  if (!isInstalled(install)) await rm(install.folder, { recursive: true, force: true })
  await rename(temp, install.folder).catch((error: unknown) => {
    if (!isInstalled(install)) throw installError(install, errorText(error), error)
  })
}

function installError(install: PackageInstall, reason: string, cause?: unknown): GyreError {
  return new GyreError(`cannot install ${install.packageName} ${install.version} into ${install.folder}: ${reason}`, {
    boundary: 'harness',
    code: 'E_HARNESS_INSTALL',
    retryable: true,
    cause,
  })
}
