/** @file `gyre harness`: what is in the cache of harnesses, and what could be. */
import { existsSync, lstatSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { isInstalled } from '../adapters/harness/packaged/install-package.ts'
import { PackagedHarness } from '../adapters/harness/packaged/packaged-harness.ts'
import type { HarnessRecipe } from '../adapters/harness/packaged/recipe.ts'
import { HARNESS_RECIPES } from '../adapters/harness/packaged/recipes.ts'
import { absolutePath } from '../config/resolve.ts'
import { formatSize } from '../config/sizes.ts'
import { GyreError } from '../core/errors.ts'
import type { CliContext } from './context.ts'
import { namedHarness } from './harness-name.ts'

export interface HarnessOptions {
  readonly cache?: string
  readonly json?: true
}

/** One version of one harness. */
interface HarnessRow {
  readonly name: string
  readonly version: string
  /** True for the version that is taken when none is named. */
  readonly isDefault: boolean
  readonly api: string
  readonly package: string
  readonly installed: boolean
  /** On disk. [bytes] 0 when it is not installed. */
  readonly bytes: number
  readonly folder: string
}

export function listHarnesses(options: HarnessOptions, context: CliContext): void {
  const rows = HARNESS_RECIPES.flatMap((recipe) =>
    versionsOf(recipe, cacheFolder(options, context)).map((version) => rowOf(recipe, version, options, context)),
  )
  if (options.json) context.print(JSON.stringify({ harnesses: rows }))
  else context.print(table(rows, context))
}

/** @throws GyreError E_CONFIG_HARNESS, E_HARNESS_INSTALL, E_HARNESS_PLATFORM. */
export async function installHarness(text: string, options: HarnessOptions, context: CliContext): Promise<void> {
  const { recipe, version = recipe.defaultVersion } = namedHarness(text)
  const harness = new PackagedHarness(recipe, { version, cacheFolder: cacheFolder(options, context) })
  await harness.prepare((message) => context.warn(message))
  const row = rowOf(recipe, version, options, context)
  if (options.json) context.print(JSON.stringify(row))
  else context.print(`${row.name} ${row.version}, ${formatSize(row.bytes)}, is in ${row.folder}`)
}

/** @throws GyreError E_CONFIG_HARNESS, E_HARNESS_NOT_FOUND when it is not installed. */
export function printHarnessPath(text: string, options: HarnessOptions, context: CliContext): void {
  const { recipe, version = recipe.defaultVersion } = namedHarness(text)
  const row = rowOf(recipe, version, options, context)
  if (!row.installed) {
    const cache = options.cache === undefined ? '' : ` --cache ${options.cache}`
    throw new GyreError(
      `${row.name} ${version} is not installed: run gyre harness install ${row.name}@${version}${cache}`,
      { boundary: 'harness', code: 'E_HARNESS_NOT_FOUND' },
    )
  }
  context.print(options.json ? JSON.stringify(row) : row.folder)
}

function cacheFolder(options: HarnessOptions, context: CliContext): string {
  return absolutePath(options.cache ?? join('~', '.cache', 'gyre', 'harness'), context.cwd, context.home)
}

/** The default first, then every other one that is in the cache. */
function versionsOf(recipe: HarnessRecipe, cache: string): readonly string[] {
  const prefix = `${recipe.name}-`
  const others = existsSync(cache)
    ? readdirSync(cache)
        .filter((entry) => entry.startsWith(prefix))
        .map((entry) => entry.slice(prefix.length))
        .filter((version) => version !== recipe.defaultVersion)
        .filter((version) =>
          isInstalled({ folder: join(cache, prefix + version), packageName: recipe.packageName, version }),
        )
    : []
  return [recipe.defaultVersion, ...others.toSorted()]
}

function rowOf(recipe: HarnessRecipe, version: string, options: HarnessOptions, context: CliContext): HarnessRow {
  const { folder } = new PackagedHarness(recipe, { version, cacheFolder: cacheFolder(options, context) })
  const installed = isInstalled({ folder, packageName: recipe.packageName, version })
  return {
    name: recipe.name,
    version,
    isDefault: version === recipe.defaultVersion,
    api: recipe.api,
    package: recipe.packageName,
    installed,
    bytes: installed ? bytesOnDisk(folder) : 0,
    folder,
  }
}

/** What the folder takes on disk, holes and links not counted. */
function bytesOnDisk(folder: string): number {
  let bytes = 0
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name)
    bytes += entry.isDirectory() ? bytesOnDisk(path) : 512 * (lstatSync(path).blocks ?? 0)
  }
  return bytes
}

function table(rows: readonly HarnessRow[], { colors }: CliContext): string {
  const heads = ['harness', 'version', 'speaks', 'installed']
  const cells = rows.map((row) => [row.name, row.version, row.api, row.installed ? formatSize(row.bytes) : 'no'])
  const widths = heads.map((head, i) => Math.max(head.length, ...cells.map((row) => row[i]?.length ?? 0)))
  const line = (row: readonly string[]): string =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd()
  return [colors.bold(line(heads)), ...cells.map(line)].join('\n')
}
