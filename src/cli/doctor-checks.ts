/** @file What a run needs of the machine, one function each. Nothing here changes anything. */
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { isInstalled } from '../adapters/harness/packaged/install-package.ts'
import { pi } from '../adapters/harness/packaged/recipes/pi.ts'
import { probeBubblewrap } from '../adapters/sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { absolutePath } from '../config/resolve.ts'
import { RunFileSchema } from '../config/schema.ts'
import { formatSize } from '../config/sizes.ts'
import { errorText } from '../core/errors.ts'
import { findProgram } from '../host/find-program.ts'
import { allocateMemory, compileKernels } from '../kernels/wasm.ts'
import type { CliContext } from './context.ts'

export interface Check {
  readonly name: string
  /** `problem`: a run cannot work. `warning`: it can, with less. */
  readonly state: 'ok' | 'warning' | 'problem'
  readonly found: string
  readonly fix?: string
}

/** The least that is taken for a cell socket: folder of the run, index, ending. [bytes] */
const SOCKET_NAME_BYTES = 32
const MAX_SOCKET_PATH = 103
const LOW_DISK = 2 ** 30
const COMMAND_DEADLINE_MS = 20_000

/** Checks in the order they are shown. @param isOffline skips what needs the network. */
export async function doctorChecks(context: CliContext, isOffline: boolean): Promise<readonly Check[]> {
  const defaults = RunFileSchema.parse({ tasks: {} })
  const cache = absolutePath(defaults.paths.cache, context.cwd, context.home)
  const harness = harnessCheck(join(cache, 'harness', `${pi.name}-${pi.defaultVersion}`))
  const isPiCached = harness.state === 'ok'
  return [
    nodeCheck(process.versions.node),
    coresCheck(availableParallelism()),
    wasmCheck(),
    kernelsCheck(),
    programsCheck(context),
    await bubblewrapCheck(),
    harness,
    ...(isOffline ? [] : [await npmCheck(isPiCached, context)]),
    folderCheck('temporary folder', tmpdir(), 'set TMPDIR to a folder you may write to'),
    folderCheck(
      'run folders',
      join(context.cwd, defaults.paths.runs),
      'change to another folder, or give paths.runs=FOLDER',
    ),
    diskCheck(context.cwd),
    socketCheck(tmpdir()),
  ]
}

function nodeCheck(version: string): Check {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  const name = 'Node.js'
  return major > 20 || (major === 20 && minor >= 19)
    ? { name, state: 'ok', found: version }
    : { name, state: 'problem', found: version, fix: 'install Node.js 20.19 or newer' }
}

function coresCheck(cores: number): Check {
  const name = 'CPU cores'
  return cores >= 2
    ? { name, state: 'ok', found: String(cores) }
    : {
        name,
        state: 'warning',
        found: '1',
        fix: 'a run works, but cells and harnesses share one core: take elastic.cells=1',
      }
}

/** A module of one function on vectors. */
const SIMD_MODULE = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]

function wasmCheck(): Check {
  const name = 'WebAssembly'
  const hasSimd = works(() => compileKernels(Uint8Array.from(SIMD_MODULE)))
  const hasThreads = works(() => allocateMemory(1))
  if (hasSimd && hasThreads) return { name, state: 'ok', found: 'SIMD and shared memory' }
  const lacks = [hasSimd ? '' : 'SIMD', hasThreads ? '' : 'shared memory'].filter((part) => part !== '').join(' and ')
  return {
    name,
    state: 'problem',
    found: `no ${lacks}`,
    fix: 'use an unmodified Node.js 20.19 or newer, without --jitless',
  }
}

function works(attempt: () => unknown): boolean {
  try {
    attempt()
    return true
  } catch {
    return false
  }
}

function kernelsCheck(): Check {
  const name = 'engine kernels'
  // The same number of folders up from src/cli and from dist/cli.
  const file = join(dirname(fileURLToPath(import.meta.url)), '../../dist/kernels/engine.wasm')
  if (!existsSync(file)) return { name, state: 'problem', found: 'not built', fix: 'npm run build' }
  const bytes = readFileSync(file)
  return works(() => compileKernels(bytes))
    ? { name, state: 'ok', found: `built, ${formatSize(bytes.length)}` }
    : { name, state: 'problem', found: `${file} does not load`, fix: 'remove it and run npm run build' }
}

function programsCheck({ env, cwd }: CliContext): Check {
  const name = 'shell tools'
  const missing = ['sh', 'bash', 'cat', 'awk'].filter(
    (program) => findProgram(program, env['PATH'] ?? '', cwd) === undefined,
  )
  return missing.length === 0
    ? { name, state: 'ok', found: 'sh, bash, cat, awk' }
    : { name, state: 'problem', found: `no ${missing.join(', ')}`, fix: 'install them: tasks and their tests run them' }
}

async function bubblewrapCheck(): Promise<Check> {
  const name = 'bubblewrap'
  const probe = await probeBubblewrap()
  if (probe.works) return { name, state: 'ok', found: 'works: executions get no network but the gateway' }
  return {
    name,
    state: 'warning',
    found: 'cannot be used: executions run in process sandboxes, which can reach the network and read your files',
    fix: probe.reason,
  }
}

function harnessCheck(folder: string): Check {
  const { name, packageName, defaultVersion: version } = pi
  return isInstalled({ folder, packageName, version })
    ? { name, state: 'ok', found: `${version} is in ${folder}` }
    : { name, state: 'warning', found: `${version} is not installed yet: the first run installs it from npm` }
}

async function npmCheck(isPiCached: boolean, { env, cwd }: CliContext): Promise<Check> {
  const name = 'npm'
  const program = findProgram('npm', env['PATH'] ?? '', cwd)
  const state = isPiCached ? 'warning' : 'problem'
  if (program === undefined) return { name, state, found: 'not found', fix: 'install npm: it comes with Node.js' }
  const end = await command(program, ['view', pi.packageName, 'name', '--fetch-retries=0'])
  if (end.error === undefined) return { name, state: 'ok', found: 'reaches its registry' }
  return {
    name,
    state,
    found: `cannot reach its registry (${end.error})`,
    fix: 'check the network, the proxy, or npm config get registry',
  }
}

function folderCheck(name: string, folder: string, fix: string): Check {
  const existing = nearestFolder(folder)
  try {
    const probe = mkdtempSync(join(existing, '.gyre-doctor-'))
    mkdirSync(join(probe, 'a'))
    writeFileSync(join(probe, 'a/b'), '')
    rmSync(probe, { recursive: true })
    return { name, state: 'ok', found: `${folder} is writable` }
  } catch (error) {
    return { name, state: 'problem', found: `${folder} is not writable (${errorText(error)})`, fix }
  }
}

function nearestFolder(folder: string): string {
  return existsSync(folder) || dirname(folder) === folder ? folder : nearestFolder(dirname(folder))
}

function diskCheck(folder: string): Check {
  const name = 'free disk'
  const { bavail, bsize } = statfsSync(folder)
  const free = bavail * bsize
  return free >= LOW_DISK
    ? { name, state: 'ok', found: formatSize(free) }
    : { name, state: 'warning', found: formatSize(free), fix: 'free some: a run keeps checkpoints and workspaces' }
}

function socketCheck(folder: string): Check {
  const name = 'socket paths'
  const length = Buffer.byteLength(folder) + SOCKET_NAME_BYTES
  return length <= MAX_SOCKET_PATH
    ? { name, state: 'ok', found: `${length} of ${MAX_SOCKET_PATH} bytes` }
    : {
        name,
        state: 'problem',
        found: `${folder} is too long a name for sockets`,
        fix: 'set TMPDIR to a shorter folder, such as /tmp',
      }
}

/** Runs a program to its end within a deadline; `error` says why it failed. */
async function command(program: string, args: readonly string[]): Promise<{ readonly error: string | undefined }> {
  return new Promise((resolve) => {
    execFile(program, args, { timeout: COMMAND_DEADLINE_MS, killSignal: 'SIGKILL' }, (error, _stdout, stderr) => {
      if (error === null) return resolve({ error: undefined })
      const said = stderr
        .trim()
        .split('\n')
        .find((line) => line !== '')
      resolve({
        error: error.killed === true ? `no answer in ${COMMAND_DEADLINE_MS / 1000} s` : (said ?? error.message),
      })
    })
  })
}
