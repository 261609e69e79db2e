/** @file A harness from npm, unmodified: installed into a cache on first use, started by its recipe. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'
import { findProgram } from '../../../host/find-program.ts'
import { lastLine } from '../../../host/last-line.ts'
import type { Harness, HarnessLaunch, HarnessProgress } from '../../../ports/harness.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'
import { installPackage } from './install-package.ts'
import type { HarnessRecipe, RecipeContext } from './recipe.ts'

export interface PackagedHarnessOptions {
  /** An npm version. Default: the recipe's. */
  readonly version?: string | undefined
  /** Holds `NAME-VERSION`. Default `~/.cache/gyre/harness`. */
  readonly cacheFolder?: string
  /** Further arguments of the harness, for example `--tools bash`. */
  readonly extraArgs?: readonly string[]
  /** Default: the node that runs this. */
  readonly node?: string
  /** Writes the harness's own event stream to stdout instead of its final answer, where it has one. Default false. */
  readonly events?: boolean
  /** Further environment; must hold no secret. */
  readonly env?: Readonly<Record<string, string>>
  /** For waiting and installing together. [ms] Default 10 minutes. */
  readonly installDeadlineMs?: number
}

export class PackagedHarness implements Harness {
  readonly name: string
  readonly version: string
  readonly readOnlyFolders: readonly string[]
  /** Holds `node_modules` once it is installed. */
  readonly folder: string
  readonly #recipe: HarnessRecipe
  readonly #options: PackagedHarnessOptions
  readonly #node: string

  constructor(recipe: HarnessRecipe, options: PackagedHarnessOptions = {}) {
    this.name = recipe.name
    this.version = options.version ?? recipe.defaultVersion
    this.#recipe = recipe
    this.#options = options
    const cache = options.cacheFolder ?? join(homedir(), '.cache', 'gyre', 'harness')
    this.folder = join(cache, `${recipe.name}-${this.version}`)
    this.#node = options.node ?? process.execPath
    this.readOnlyFolders = [this.folder, dirname(this.#node)]
  }

  async prepare(progress: HarnessProgress): Promise<void> {
    if (findProgram(this.#node, '', '/') === undefined) {
      throw new GyreError(`${this.name} needs node, and there is none at ${this.#node}: correct harness.node`, {
        boundary: 'harness',
        code: 'E_HARNESS_NOT_FOUND',
      })
    }
    await installPackage({
      packageName: this.#recipe.packageName,
      version: this.version,
      folder: this.folder,
      deadlineMs: this.#options.installDeadlineMs ?? 10 * 60_000,
      progress: (message) => progress(`harness ${this.name}: ${message}`),
    })
    this.#recipe.check?.(this.folder)
  }

  async launch(launch: HarnessLaunch, signal: AbortSignal): Promise<ProcessEnd> {
    const { sandbox, logFolder } = launch
    const context = this.#context(launch)
    const { argv, env, homeFiles } = this.#recipe.plan(context)
    mkdirSync(logFolder, { recursive: true })
    for (const [path, content] of Object.entries(homeFiles)) writeBelow(sandbox.hostHome, path, content)
    const stdoutFile = join(logFolder, 'harness.stdout')
    const stderrFile = join(logFolder, 'harness.stderr')
    const run = sandbox.run(
      { argv, env: { ...this.#options.env, ...env }, timeoutMs: launch.timeoutMs, stdoutFile, stderrFile },
      signal,
    )
    const end = await run.catch((error: unknown) => {
      throw new GyreError(`harness ${this.name} cannot be launched: ${errorText(error)}`, {
        boundary: 'harness',
        code: 'E_HARNESS_LAUNCH',
        cause: error,
      })
    })
    const classified = this.#recipe.classifyEnd?.(end, stdoutFile, stderrFile, context) ?? end
    return classified.detail === undefined ? withStderr(classified, stderrFile) : classified
  }

  #context(launch: HarnessLaunch): RecipeContext {
    const { extraArgs = [], events = false } = this.#options
    return { ...launch, folder: this.folder, node: this.#node, version: this.version, extraArgs, events }
  }
}

function writeBelow(home: string, path: string, content: string): void {
  const file = join(home, path)
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, content)
}

/** What the program said last is the best reason there is for an exit code. */
function withStderr(end: ProcessEnd, stderrFile: string): ProcessEnd {
  const said = end.exitCode === 0 ? '' : lastLine(stderrFile)
  return said === '' ? end : { ...end, detail: said }
}
