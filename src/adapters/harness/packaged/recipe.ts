/** @file What is particular about one harness from npm: everything else is packaged-harness.ts. */
import type { HarnessLaunch } from '../../../ports/harness.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'

export interface RecipeContext extends HarnessLaunch {
  /** Holds the installed package: `FOLDER/node_modules/PACKAGE`. */
  readonly folder: string
  /** The node that runs JavaScript harnesses. */
  readonly node: string
  readonly version: string
  /** Further arguments of the harness. */
  readonly extraArgs: readonly string[]
  /** Writes the harness's own event stream to stdout, where it has one. */
  readonly events: boolean
}

/** How to start it. */
export interface LaunchPlan {
  readonly argv: readonly string[]
  /** The whole environment beside what the sandbox sets. The key goes here, never into a file. */
  readonly env: Readonly<Record<string, string>>
  /** Written before the start: contents by path relative to the sandbox's home. */
  readonly homeFiles: Readonly<Record<string, string>>
}

export interface HarnessRecipe {
  /** Name in a run file, of the profile, and in messages. */
  readonly name: string
  readonly packageName: string
  /** The version that is installed when none is asked for: the one our recordings were made with. */
  readonly defaultVersion: string
  /** The API it asks its model through, as people call it. */
  readonly api: string
  plan(context: RecipeContext): LaunchPlan
  /** Looks at what was installed, so that what cannot run is known before a run. @throws GyreError E_HARNESS_PLATFORM. */
  check?(folder: string): void
  /** Reads what the harness says of its own failure, when its exit code does not. */
  classifyEnd?(end: ProcessEnd, stdoutFile: string, stderrFile: string, context: RecipeContext): ProcessEnd
}
