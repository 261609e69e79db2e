/**
 * @file A sandbox of Linux namespaces, made by bubblewrap: own processes, own network with nothing in it but a port
 * that leads to the gateway, read-only system, and the workspace at the same path in every execution.
 *
 * Its kernel is the host's: it holds an agent that strays, not one that attacks the kernel.
 */
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, isAbsolute, join, posix, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import { lastLine } from '../../../host/last-line.ts'
import { defaultBaseFolder, MARKER, sweepOwnerFolders } from '../../../host/owner-folder.ts'
import { type ExecutionFolder, Owner } from '../../../host/owner.ts'
import { type SupervisedEnd, supervise, withLimits } from '../../../host/supervise.ts'
import type { ProcessEnd, ProcessSpec, Sandbox, SandboxInstance, SandboxSpec } from '../../../ports/sandbox.ts'
import { GatewaySocket } from './gateway-socket.ts'
import { executionMounts, hostPath, INSIDE, systemMounts } from './mounts.ts'

export interface BubblewrapSandboxOptions {
  /** Holds the folders of every control process of this user. Defaults to `gyre-UID` in the temp folder. */
  readonly baseFolder?: string
  /** Further folders of the host that every execution may read, at the same path (toolchains outside /usr). */
  readonly readOnlyFolders?: readonly string[]
  /** As seen inside. Defaults to the standard folders and that of this process's node. */
  readonly path?: string
  /** Between SIGTERM and SIGKILL. [ms] Default 2000. */
  readonly graceMs?: number
  /** Bound of each captured stream. [bytes] Default 64 MiB. */
  readonly outputBytes?: number
}

export type BubblewrapProbe = { readonly works: true } | { readonly works: false; readonly reason: string }

/** Any port will do: the sandbox's loopback is its own. */
const PORT = 8700
const NAMESPACES = ['--unshare-all', '--die-with-parent', '--new-session', '--hostname', 'sandbox']
const NO_LIMITS = { memoryBytes: 0, fileBytes: 0, processes: 0 }
const PROBE_TIMEOUT_MS = 10_000

/** Is bubblewrap here, and may this user make namespaces with it? */
export async function probeBubblewrap(): Promise<BubblewrapProbe> {
  const program = findProgram('bwrap', process.env['PATH'] ?? '', '/')
  if (program === undefined)
    return { works: false, reason: 'there is no bwrap in PATH: install the package bubblewrap' }
  try {
    await promisify(execFile)(program, [...NAMESPACES, ...systemMounts(), '--', '/bin/sh', '-c', ':'], {
      timeout: PROBE_TIMEOUT_MS,
    })
    return { works: true }
  } catch (error) {
    const said = (error as { readonly stderr?: string }).stderr?.trim() ?? ''
    const reason = said === '' ? errorText(error) : said
    return {
      works: false,
      reason: `bwrap cannot make a sandbox here (${reason}): it needs unprivileged user namespaces, which a container or a sysctl may forbid`,
    }
  }
}

export class BubblewrapSandbox implements Sandbox {
  readonly name = 'bubblewrap'
  readonly #base: string
  readonly #owner: Owner
  readonly #options: BubblewrapSandboxOptions
  #probe: Promise<BubblewrapProbe> | undefined

  constructor(options: BubblewrapSandboxOptions = {}) {
    this.#base = options.baseFolder ?? defaultBaseFolder()
    this.#owner = new Owner(this.#base)
    this.#options = options
  }

  /** Looked at once. */
  probe(): Promise<BubblewrapProbe> {
    this.#probe ??= probeBubblewrap()
    return this.#probe
  }

  async create(spec: SandboxSpec): Promise<SandboxInstance> {
    const probe = await this.probe()
    if (!probe.works) throw createError(`${probe.reason}; or use the sandbox "process"`)
    const relay = relayFile()
    if (!existsSync(relay)) throw createError(`${relay} is missing: run npm run build`)
    let folder: ExecutionFolder | undefined
    try {
      folder = await this.#owner.createExecution(`${spec.task.folder}/environment`)
      const socket = await GatewaySocket.open(join(folder.root, 'gateway.sock'), spec.gatewayUrl)
      return new BubblewrapInstance(spec, folder, this.#owner, { ...this.#options, socket, relay })
    } catch (error) {
      if (folder !== undefined) await this.#owner.destroyExecution(folder)
      throw createError(`cannot make a sandbox for task ${spec.task.name}: ${errorText(error)}`, error)
    }
  }

  sweep(): Promise<{ readonly processes: number; readonly folders: number }> {
    return sweepOwnerFolders(this.#base)
  }
}

interface InstanceSettings extends BubblewrapSandboxOptions {
  readonly socket: GatewaySocket
  readonly relay: string
}

class BubblewrapInstance implements SandboxInstance {
  readonly workspace = INSIDE.workspace
  readonly home = INSIDE.home
  readonly verifierLogs = INSIDE.verifierLogs
  readonly tests = INSIDE.tests
  readonly gatewayUrl: string
  readonly hostWorkspace: string
  readonly hostHome: string
  readonly hostVerifierLogs: string
  readonly hostTests: string
  readonly #spec: SandboxSpec
  readonly #folder: ExecutionFolder
  readonly #owner: Owner
  readonly #settings: InstanceSettings
  /** Host folders that are seen inside at their own path. */
  readonly #shown: readonly string[]

  constructor(spec: SandboxSpec, folder: ExecutionFolder, owner: Owner, settings: InstanceSettings) {
    this.hostWorkspace = folder.workspace
    this.hostHome = folder.home
    this.hostVerifierLogs = folder.verifierLogs
    this.hostTests = folder.tests
    this.gatewayUrl = `http://127.0.0.1:${PORT}${new URL(spec.gatewayUrl).pathname.replace(/\/$/, '')}`
    this.#spec = spec
    this.#folder = folder
    this.#owner = owner
    this.#settings = settings
    this.#shown = [dirname(process.execPath), ...(settings.readOnlyFolders ?? []), ...spec.readOnlyFolders]
  }

  async run(spec: ProcessSpec, signal: AbortSignal): Promise<ProcessEnd> {
    const env = this.#environment(spec.env)
    const cwd = spec.cwd ?? this.workspace
    const program = this.#locate(spec.argv[0] ?? '', env['PATH'] ?? '', cwd)
    mkdirSync(dirname(spec.stdoutFile), { recursive: true })
    mkdirSync(dirname(spec.stderrFile), { recursive: true })
    const end = await this.#supervise(spec, [program, ...spec.argv.slice(1)], env, cwd, signal)
    // bwrap and the relay speak on the program's stderr when they cannot start it.
    const said = end.exitCode === 1 ? lastLine(spec.stderrFile) : ''
    if (said.startsWith('bwrap: ')) throw spawnError(`cannot start "${program}" in ${cwd}: ${said}`)
    return withSignal(end)
  }

  async destroy(): Promise<void> {
    this.#settings.socket.close()
    await this.#owner.destroyExecution(this.#folder)
  }

  async #supervise(
    spec: ProcessSpec,
    argv: readonly string[],
    env: Readonly<Record<string, string>>,
    cwd: string,
    signal: AbortSignal,
  ): Promise<SupervisedEnd> {
    const bwrap = findProgram('bwrap', process.env['PATH'] ?? '', '/') ?? 'bwrap'
    const mounts = [
      ...systemMounts(),
      ...executionMounts(this.#folder, this.#shown, this.#settings.socket.path, this.#settings.relay),
    ]
    const relay = [process.execPath, INSIDE.relay, String(PORT), INSIDE.socket]
    try {
      return await supervise(
        {
          // The limits are the program's: the relay in front of it needs more than some of them allow.
          argv: [
            bwrap,
            ...NAMESPACES,
            ...mounts,
            '--chdir',
            cwd,
            '--',
            ...relay,
            ...withLimits(argv, this.#spec.limits),
          ],
          env,
          cwd: '/',
          timeoutMs: spec.timeoutMs,
          graceMs: this.#settings.graceMs ?? 2000,
          stdoutFile: spec.stdoutFile,
          stderrFile: spec.stderrFile,
          outputBytes: this.#settings.outputBytes ?? 64 * 2 ** 20,
          limits: NO_LIMITS,
          marker: this.#folder.marker,
          folder: this.#folder.root,
          shielded: true,
        },
        await this.#owner.guard(),
        signal,
      )
    } catch (error) {
      throw spawnError(`cannot start "${argv[0]}" in ${cwd}: ${errorText(error)}`, error)
    }
  }

  /** The program's path inside. */
  #locate(name: string, path: string, cwd: string): string {
    const candidates = name.includes('/')
      ? [isAbsolute(name) ? name : posix.join(cwd, name)]
      : path.split(':').map((folder) => posix.join(folder, name))
    const found = candidates.find((candidate) => {
      const host = hostPath(candidate, this.#folder, this.#shown)
      return host !== undefined && findProgram(host, '', '/') !== undefined
    })
    if (found === undefined || name === '') {
      throw spawnError(`cannot start "${name}": the sandbox has no such program in ${name.includes('/') ? cwd : path}`)
    }
    return found
  }

  #environment(env: Readonly<Record<string, string>>): Record<string, string> {
    return {
      PATH: this.#settings.path ?? insidePath(),
      LANG: 'C.UTF-8',
      HOME: this.home,
      TMPDIR: INSIDE.tmp,
      ...env,
      [MARKER]: this.#folder.marker.slice(MARKER.length + 1),
    }
  }
}

function insidePath(): string {
  const standard = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
  const own = dirname(process.execPath)
  return [...(standard.includes(own) ? [] : [own]), ...standard].join(':')
}

/** bwrap reports a signal inside as 128 + its number, as a shell does. */
function withSignal(end: SupervisedEnd): ProcessEnd {
  const number = (end.exitCode ?? 0) - 128
  const name = Object.entries(constants.signals).find(([, value]) => value === number)?.[0]
  return name === undefined ? end : { ...end, exitCode: undefined, signal: name }
}

/** The compiled relay: plain node cannot run the source. */
function relayFile(): string {
  const here = dirname(fileURLToPath(import.meta.url))
  return resolve(here, '../../../../dist/adapters/sandbox/bubblewrap/relay.js')
}

function createError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'sandbox', code: 'E_SANDBOX_CREATE', cause })
}

function spawnError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'sandbox', code: 'E_SANDBOX_SPAWN', cause })
}
