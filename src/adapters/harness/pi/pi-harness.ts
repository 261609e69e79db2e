/**
 * @file The pi coding agent, unmodified from npm, pointed at the gateway through a custom provider.
 *
 * Its home is private and fresh, so no setting, skill or key of the user reaches it. The API key is in the
 * environment of its process only: the provider file names the variable.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import { lastLine } from '../../../host/last-line.ts'
import type { Harness, HarnessEndpoint, HarnessLaunch, HarnessProgress } from '../../../ports/harness.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'
import { installPackage } from './install-package.ts'

export interface PiHarnessOptions {
  /** Default 0.73.1. */
  readonly version?: string
  /** Holds `pi-VERSION`. Default `~/.cache/gyre/harness`. */
  readonly cacheFolder?: string
  /** Further arguments of pi, for example `--tools bash`. */
  readonly extraArgs?: readonly string[]
  /** Arguments of node before pi. */
  readonly nodeArgs?: readonly string[]
  /** Default: the node that runs this. */
  readonly node?: string
  /**
   * Writes pi's event stream to stdout instead of its final answer. Each event of a streamed answer repeats the whole
   * answer so far, so the output grows with the square of an answer's length. Default false.
   */
  readonly events?: boolean
  /** Further environment; must hold no secret. */
  readonly env?: Readonly<Record<string, string>>
  /** For waiting and installing together. [ms] Default 10 minutes. */
  readonly installDeadlineMs?: number
}

const PACKAGE = '@mariozechner/pi-coding-agent'
const DEFAULT_VERSION = '0.73.1'
const PROVIDER = 'gyre'
const KEY_VARIABLE = 'GYRE_API_KEY'

export class PiHarness implements Harness {
  readonly name = 'pi'
  readonly version: string
  readonly readOnlyFolders: readonly string[]
  readonly #options: PiHarnessOptions
  readonly #folder: string
  readonly #node: string

  constructor(options: PiHarnessOptions = {}) {
    this.version = options.version ?? DEFAULT_VERSION
    this.#options = options
    this.#folder = join(options.cacheFolder ?? join(homedir(), '.cache', 'gyre', 'harness'), `pi-${this.version}`)
    this.#node = options.node ?? process.execPath
    this.readOnlyFolders = [this.#folder, dirname(this.#node)]
  }

  async prepare(progress: HarnessProgress): Promise<void> {
    if (findProgram(this.#node, '', '/') === undefined) {
      throw new GyreError(`pi needs node, and there is none at ${this.#node}: correct harness.node`, {
        boundary: 'harness',
        code: 'E_HARNESS_NOT_FOUND',
      })
    }
    await installPackage({
      packageName: PACKAGE,
      version: this.version,
      folder: this.#folder,
      deadlineMs: this.#options.installDeadlineMs ?? 10 * 60_000,
      progress: (message) => progress(`harness pi: ${message}`),
    })
  }

  async launch(launch: HarnessLaunch, signal: AbortSignal): Promise<ProcessEnd> {
    const { sandbox, endpoint, logFolder } = launch
    mkdirSync(logFolder, { recursive: true })
    writeProvider(sandbox.hostHome, endpoint)
    const stdoutFile = join(logFolder, 'harness.stdout')
    const stderrFile = join(logFolder, 'harness.stderr')
    const run = sandbox.run(
      {
        argv: this.#argv(launch),
        env: {
          ...this.#options.env,
          PI_OFFLINE: '1',
          PI_SKIP_VERSION_CHECK: '1',
          [KEY_VARIABLE]: endpoint.apiKey,
        },
        timeoutMs: launch.timeoutMs,
        stdoutFile,
        stderrFile,
      },
      signal,
    )
    const end = await run.catch((error: unknown) => {
      throw new GyreError(`harness pi cannot be launched: ${errorText(error)}`, {
        boundary: 'harness',
        code: 'E_HARNESS_LAUNCH',
        cause: error,
      })
    })
    return this.#options.events === true ? classifyEvents(end, stdoutFile, stderrFile) : withStderr(end, stderrFile)
  }

  #argv({ instruction, endpoint }: HarnessLaunch): readonly string[] {
    return [
      this.#node,
      ...(this.#options.nodeArgs ?? []),
      join(this.#folder, 'node_modules', PACKAGE, 'dist', 'cli.js'),
      '--provider',
      PROVIDER,
      '--model',
      endpoint.model,
      '--mode',
      this.#options.events === true ? 'json' : 'text',
      '--no-session',
      ...(this.#options.extraArgs ?? []),
      '-p',
      // pi takes a message that begins so for an option or a file to read.
      /^[-@]/.test(instruction) ? ` ${instruction}` : instruction,
    ]
  }
}

function writeProvider(home: string, endpoint: HarnessEndpoint): void {
  const folder = join(home, '.pi', 'agent')
  const model = {
    id: endpoint.model,
    name: endpoint.model,
    reasoning: false,
    input: ['text'],
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
    contextWindow: endpoint.contextWindow,
    maxTokens: endpoint.maxOutputTokens,
  }
  const provider = {
    baseUrl: `${endpoint.baseUrl}/v1`,
    api: 'openai-completions',
    apiKey: KEY_VARIABLE,
    models: [model],
  }
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'models.json'), JSON.stringify({ providers: { [PROVIDER]: provider } }))
  writeFileSync(join(folder, 'settings.json'), JSON.stringify({ compaction: compactionFor(endpoint.contextWindow) }))
}

/**
 * pi compacts when less than its reserve is left, and its own reserve is larger than a small model's whole window:
 * it would compact after every run. The reserve shrinks with the window.
 */
function compactionFor(contextWindow: number): Readonly<Record<string, boolean | number>> {
  return {
    enabled: true,
    reserveTokens: Math.min(16_384, Math.floor(contextWindow / 8)),
    keepRecentTokens: Math.min(20_000, Math.floor(contextWindow / 4)),
  }
}

/** In text mode pi exits with 1 when its last model call failed, and says why on stderr. */
function withStderr(end: ProcessEnd, stderrFile: string): ProcessEnd {
  const said = end.exitCode === 0 ? '' : lastLine(stderrFile)
  return said === '' ? end : { ...end, detail: said }
}

/** In event mode pi exits with 0 also when its last model call failed: the exit code is made that of text mode. */
function classifyEvents(end: ProcessEnd, stdoutFile: string, stderrFile: string): ProcessEnd {
  const last = lastAssistantMessage(readFileSync(stdoutFile, 'utf8'))
  if (end.exitCode !== 0 || (last?.stopReason !== 'error' && last?.stopReason !== 'aborted')) {
    return withStderr(end, stderrFile)
  }
  return { ...end, exitCode: 1, detail: last.errorMessage ?? `the last model call ended as ${last.stopReason}` }
}

interface AssistantEnd {
  readonly stopReason?: string
  readonly errorMessage?: string
}

function lastAssistantMessage(events: string): AssistantEnd | undefined {
  for (const line of events.split('\n').toReversed()) {
    if (!line.startsWith('{"type":"message_end"')) continue
    try {
      const event = JSON.parse(line) as { readonly message?: AssistantEnd & { readonly role?: string } }
      if (event.message?.role === 'assistant') return event.message
    } catch {
      // The last line of a killed program may be cut off.
    }
  }
  return undefined
}
