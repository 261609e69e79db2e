/**
 * @file A sandbox of plain processes and folders. It keeps executions apart and cleans up after them; it is no
 * security boundary: a program here has the rights of the user who trains, network included.
 *
 * Inside and outside are the same file system, so Harbor's `/logs` and `/tests` do not exist. What runs here finds
 * the verifier's folder as `$LOGS_DIR/verifier` and the tests as `$TESTS_DIR`.
 */
import { mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import { defaultBaseFolder, MARKER, sweepOwnerFolders } from '../../../host/owner-folder.ts'
import { type ExecutionFolder, Owner } from '../../../host/owner.ts'
import { hasProcFs } from '../../../host/process-table.ts'
import { supervise } from '../../../host/supervise.ts'
import type { ProcessEnd, ProcessSpec, Sandbox, SandboxInstance, SandboxSpec } from '../../../ports/sandbox.ts'

export interface ProcessSandboxOptions {
  /** Holds the folders of every control process of this user. Defaults to `gyre-UID` in the temp folder. */
  readonly baseFolder?: string
  /** Programs are found here unless a process brings a PATH of its own. Defaults to the PATH of this process. */
  readonly path?: string
  /** Between SIGTERM and SIGKILL. [ms] Default 2000. */
  readonly graceMs?: number
  /** Bound of each captured stream. [bytes] Default 64 MiB. */
  readonly outputBytes?: number
}

const STANDARD_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

export class ProcessSandbox implements Sandbox {
  readonly name = 'process'
  /** What this host cannot enforce, each with its reason. */
  readonly limitations: readonly string[]
  readonly #base: string
  readonly #owner: Owner
  readonly #settings: InstanceSettings

  constructor(options: ProcessSandboxOptions = {}) {
    this.#base = options.baseFolder ?? defaultBaseFolder()
    this.#owner = new Owner(this.#base)
    this.#settings = {
      path: options.path ?? process.env['PATH'] ?? STANDARD_PATH,
      graceMs: options.graceMs ?? 2000,
      outputBytes: options.outputBytes ?? 64 * 2 ** 20,
    }
    this.limitations = hasProcFs
      ? []
      : ['this system has no /proc, so a process that leaves its group and its parent is not found and may live on']
  }

  async create(spec: SandboxSpec): Promise<SandboxInstance> {
    try {
      const folder = await this.#owner.createExecution(`${spec.task.folder}/environment`)
      return new ProcessInstance(spec, folder, this.#owner, this.#settings)
    } catch (error) {
      throw new GyreError(
        `cannot make a workspace for task ${spec.task.name} under ${this.#base}: ${errorText(error)}`,
        { boundary: 'sandbox', code: 'E_SANDBOX_CREATE', cause: error },
      )
    }
  }

  sweep(): Promise<{ readonly processes: number; readonly folders: number }> {
    return sweepOwnerFolders(this.#base)
  }
}

interface InstanceSettings {
  readonly path: string
  readonly graceMs: number
  readonly outputBytes: number
}

class ProcessInstance implements SandboxInstance {
  readonly workspace: string
  readonly home: string
  readonly verifierLogs: string
  readonly tests: string
  readonly gatewayUrl: string
  readonly hostWorkspace: string
  readonly hostHome: string
  readonly hostVerifierLogs: string
  readonly hostTests: string
  readonly #spec: SandboxSpec
  readonly #folder: ExecutionFolder
  readonly #owner: Owner
  readonly #settings: InstanceSettings

  constructor(spec: SandboxSpec, folder: ExecutionFolder, owner: Owner, settings: InstanceSettings) {
    this.workspace = this.hostWorkspace = folder.workspace
    this.home = this.hostHome = folder.home
    this.verifierLogs = this.hostVerifierLogs = folder.verifierLogs
    this.tests = this.hostTests = folder.tests
    this.gatewayUrl = spec.gatewayUrl
    this.#spec = spec
    this.#folder = folder
    this.#owner = owner
    this.#settings = settings
  }

  async run(spec: ProcessSpec, signal: AbortSignal): Promise<ProcessEnd> {
    const env = this.#environment(spec.env)
    const cwd = spec.cwd ?? this.workspace
    const [name = '', ...args] = spec.argv
    const program = findProgram(name, env['PATH'] ?? '', cwd)
    if (program === undefined) {
      throw spawnError(`cannot start "${name}": no such program in ${name.includes('/') ? cwd : `PATH ${env['PATH']}`}`)
    }
    mkdirSync(dirname(spec.stdoutFile), { recursive: true })
    mkdirSync(dirname(spec.stderrFile), { recursive: true })
    try {
      return await supervise(
        {
          argv: [program, ...args],
          env,
          cwd,
          timeoutMs: spec.timeoutMs,
          graceMs: this.#settings.graceMs,
          stdoutFile: spec.stdoutFile,
          stderrFile: spec.stderrFile,
          outputBytes: this.#settings.outputBytes,
          limits: this.#spec.limits,
          marker: this.#folder.marker,
          folder: this.#folder.root,
        },
        await this.#owner.guard(),
        signal,
      )
    } catch (error) {
      throw spawnError(`cannot start "${program}" in ${cwd}: ${errorText(error)}`, error)
    }
  }

  async destroy(): Promise<void> {
    await this.#owner.destroyExecution(this.#folder)
  }

  #environment(env: Readonly<Record<string, string>>): Record<string, string> {
    return {
      PATH: this.#settings.path,
      LANG: 'C.UTF-8',
      HOME: this.home,
      TMPDIR: this.#folder.tmp,
      ...env,
      [MARKER]: this.#folder.marker.slice(MARKER.length + 1),
    }
  }
}

function spawnError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'sandbox', code: 'E_SANDBOX_SPAWN', cause })
}
