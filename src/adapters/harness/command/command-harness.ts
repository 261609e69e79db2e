/**
 * @file Any program as a harness: an argv from the run file, with the endpoint in the variables that most agents read.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import type { Harness, HarnessLaunch, HarnessProgress } from '../../../ports/harness.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'
import { lastLine } from '../../../host/last-line.ts'

export interface CommandHarnessOptions {
  /** Shown and recorded. Default `command`. */
  readonly name?: string
  readonly version?: string
  /** `{instruction}`, `{model}`, `{base_url}` and `{instruction_file}` are replaced in every argument. */
  readonly argv: readonly string[]
  /** Added to the environment; wins over what the adapter sets. */
  readonly env?: Readonly<Record<string, string>>
  /** Host folders the program needs in a sandbox that hides the host. */
  readonly readOnlyFolders?: readonly string[]
  /** Where the program is looked for. Defaults to the PATH of this process. */
  readonly path?: string
}

export class CommandHarness implements Harness {
  readonly name: string
  readonly version: string
  readonly readOnlyFolders: readonly string[]
  readonly #options: CommandHarnessOptions
  readonly #path: string

  constructor(options: CommandHarnessOptions) {
    this.name = options.name ?? 'command'
    this.version = options.version ?? 'unversioned'
    this.readOnlyFolders = options.readOnlyFolders ?? []
    this.#options = options
    this.#path = options.env?.['PATH'] ?? options.path ?? process.env['PATH'] ?? ''
  }

  /** Checks that the program exists. A program that a task brings into its workspace (`./run.sh`) is checked at launch. */
  prepare(progress: HarnessProgress): Promise<void> {
    const program = this.#options.argv[0] ?? ''
    const fromWorkspace = program.includes('/') && !program.startsWith('/')
    if (!fromWorkspace && findProgram(program, this.#path, '/') === undefined) {
      return Promise.reject(notFound(program, program.startsWith('/') ? 'there' : `in PATH ${this.#path}`))
    }
    progress(`harness ${this.name}: ${this.#options.argv.join(' ')}`)
    return Promise.resolve()
  }

  async launch(launch: HarnessLaunch, signal: AbortSignal): Promise<ProcessEnd> {
    const { sandbox, endpoint, instruction, logFolder } = launch
    mkdirSync(logFolder, { recursive: true })
    writeFileSync(join(sandbox.hostHome, INSTRUCTION_FILE), instruction)
    const instructionFile = join(sandbox.home, INSTRUCTION_FILE)
    const values: Readonly<Record<string, string>> = {
      instruction,
      instruction_file: instructionFile,
      model: endpoint.model,
      base_url: endpoint.baseUrl,
    }
    const stderrFile = join(logFolder, 'harness.stderr')
    const run = sandbox.run(
      {
        // One pass, so that an instruction that itself holds `{model}` stays as it is.
        argv: this.#options.argv.map((a) => a.replace(/\{(\w+)\}/g, (whole, key: string) => values[key] ?? whole)),
        env: {
          OPENAI_BASE_URL: `${endpoint.baseUrl}/v1`,
          OPENAI_API_KEY: endpoint.apiKey,
          ANTHROPIC_BASE_URL: endpoint.baseUrl,
          ANTHROPIC_API_KEY: endpoint.apiKey,
          GYRE_MODEL: endpoint.model,
          // One variable may hold 128 KiB on Linux; a longer instruction is in the file only.
          ...(Buffer.byteLength(instruction) < MAX_VARIABLE_BYTES ? { GYRE_INSTRUCTION: instruction } : {}),
          GYRE_INSTRUCTION_FILE: instructionFile,
          ...this.#options.env,
        },
        timeoutMs: launch.timeoutMs,
        stdoutFile: join(logFolder, 'harness.stdout'),
        stderrFile,
      },
      signal,
    )
    const end = await run.catch((error: unknown) => {
      throw new GyreError(`harness ${this.name} cannot be launched: ${errorText(error)}`, {
        boundary: 'harness',
        code: 'E_HARNESS_LAUNCH',
        cause: error,
      })
    })
    const said = end.exitCode === 0 ? '' : lastLine(stderrFile)
    return said === '' ? end : { ...end, detail: said }
  }
}

const INSTRUCTION_FILE = 'instruction.md'
const MAX_VARIABLE_BYTES = 100_000

function notFound(program: string, where: string): GyreError {
  return new GyreError(`harness program "${program}" was not found ${where}: install it or correct harness.argv`, {
    boundary: 'harness',
    code: 'E_HARNESS_NOT_FOUND',
  })
}
