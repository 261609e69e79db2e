/**
 * @file Reads a run file and `key=value` overrides into a RunConfig, or says everything that is wrong with them.
 *
 * Sources, the later wins: defaults < run file < overrides from left to right. Values of overrides are YAML. A
 * relative path in the file counts from the file, in an override from the working directory.
 */
import { readFileSync } from 'node:fs'
import { basename, dirname, relative, resolve } from 'node:path'
import { type Document, isNode, LineCounter, parseDocument, stringify } from 'yaml'
import { GyreError } from '../core/errors.ts'
import { findings } from './checks.ts'
import { configJsonSchema } from './json-schema.ts'
import { type FilledRunFile, withLevers } from './levers.ts'
import { type Problem, problemsOf } from './problems.ts'
import { absolutePath, type ResolveContext, resolveConfig, type RunConfig, secretOf } from './resolve.ts'
import { type RunFile, RunFileSchema } from './schema.ts'

export interface LoadedConfig {
  readonly config: RunConfig
  /** The same as YAML, defaults filled in, paths absolute, secrets still `env:NAME`: loading it gives the same config. */
  readonly resolvedYaml: string
  readonly warnings: readonly string[]
}

/** Fields that are paths, and what they are relative to when they come from the file. */
const PATHS = [
  ['harness', 'profile'],
  ['tasks', 'train'],
  ['tasks', 'heldOut'],
  ['policy', 'folder'],
] as const

/**
 * @param path a YAML run file. @param overrides `dotted.key=value`.
 * @throws GyreError with every problem at once in its message and in `details.problems`: E_CONFIG_NOT_FOUND,
 * E_CONFIG_SYNTAX, E_CONFIG_OVERRIDE, E_CONFIG_UNKNOWN_KEY, E_CONFIG_TYPE, E_CONFIG_MISSING, E_CONFIG_SECRET,
 * E_CONFIG_CONFLICT, E_CONFIG_CAPACITY. The code is that of the first problem.
 */
export function loadConfig(path: string, overrides: readonly string[], context: ResolveContext): LoadedConfig {
  const file = resolve(context.cwd, path)
  const advice = 'give the path of a YAML file, for example examples/quickstart.yaml'
  const text = readText(file, `cannot read the run file ${path}: ${advice}`)
  return parseConfig(text, { ...context, file, label: labelOf(file, context.cwd) }, overrides)
}

export interface ParseContext extends ResolveContext {
  /** Absolute. Relative paths inside count from its folder; its name is the default name of the run. */
  readonly file: string
  /** How errors name it. */
  readonly label: string
}

/** `loadConfig` of text that is already read. */
export function parseConfig(text: string, context: ParseContext, overrides: readonly string[] = []): LoadedConfig {
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false })
  const [syntax] = document.errors
  if (syntax !== undefined) {
    const { line, col } = lines.linePos(syntax.pos[0])
    throw configError('E_CONFIG_SYNTAX', `${context.label}:${line}:${col}: not valid YAML: ${syntax.message}`)
  }
  const changes = overrides.map(parseOverride)
  const input = merged(document.toJS({ maxAliasCount: 100 }) as unknown, changes)
  const where = (problem: readonly string[]): string => placeOf(problem, document, lines, changes, context.label)

  const parsed = RunFileSchema.safeParse(input)
  if (!parsed.success) throw failure(problemsOf(parsed.error.issues, input, configJsonSchema()), where)
  const checked = findings(parsed.data)
  const errors = [...checked.filter((f) => f.severity === 'error'), ...missingSecrets(parsed.data, context.env)]
  if (errors.length > 0) throw failure(errors, where)

  const located = withPaths(withLevers(parsed.data), context, changes)
  return {
    config: resolveConfig(located, context.env),
    resolvedYaml: stringify(located),
    warnings: checked.filter((f) => f.severity === 'warning').map((f) => `${where(f.path)}: ${f.message}`),
  }
}

interface Override {
  readonly text: string
  readonly path: readonly string[]
  readonly value: unknown
}

function parseOverride(text: string): Override {
  const at = text.indexOf('=')
  const path = text.slice(0, Math.max(at, 0)).split('.')
  if (at <= 0 || path.some((key) => key.trim() === '')) {
    const example = 'write a dotted key, = and a value, such as rollout.groupSize=4'
    throw configError('E_CONFIG_OVERRIDE', `"${text}" is not an override: ${example}`)
  }
  const value = parseDocument(text.slice(at + 1), { prettyErrors: false })
  if (value.errors[0] !== undefined) {
    throw configError('E_CONFIG_OVERRIDE', `override ${text}: the value is not valid YAML: ${value.errors[0].message}`)
  }
  return { text, path, value: value.toJS() as unknown }
}

function isSection(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Applies the overrides; a section on the way that is missing is made. */
function merged(root: unknown, changes: readonly Override[]): unknown {
  const set = (section: unknown, path: readonly string[], value: unknown): unknown => {
    const [key, ...rest] = path
    if (key === undefined) return value
    const base = isSection(section) ? section : {}
    return { ...base, [key]: set(Object.hasOwn(base, key) ? base[key] : undefined, rest, value) }
  }
  // An empty file, or a section with only comments, is null.
  const start: unknown = withoutNulls(root) ?? {}
  return changes.reduce((input, change) => set(input, change.path, change.value), start)
}

/** `section:` with nothing below means the section's defaults. */
function withoutNulls(value: unknown): unknown {
  if (value === null) return undefined
  if (!isSection(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withoutNulls(inner)]))
}

/** Where in the file, or in which override, the field at `path` stands. */
export function placeOf(
  path: readonly string[],
  document: Document,
  lines: LineCounter,
  changes: readonly Override[],
  label: string,
): string {
  const change = changes.findLast(
    (c) => c.path.every((key, i) => i >= path.length || key === path[i]) && c.path.length > 0,
  )
  if (change !== undefined) return `override ${change.text}`
  for (let depth = path.length; depth > 0; depth--) {
    const at = keyOffset(document, path.slice(0, depth))
    if (at === undefined) continue
    const { line, col } = lines.linePos(at)
    return `${label}:${line}:${col}`
  }
  return label
}

/** Where the key of this path stands in the text. */
function keyOffset(document: Document, path: readonly string[]): number | undefined {
  const parent = path.length === 1 ? document.contents : document.getIn(path.slice(0, -1), true)
  const key = path.at(-1)
  if (typeof parent !== 'object' || parent === null || !('items' in parent)) return undefined
  for (const item of parent.items as readonly unknown[]) {
    const pairKey = typeof item === 'object' && item !== null && 'key' in item ? item.key : undefined
    if (isNode(pairKey) && String(pairKey) === key) return pairKey.range?.[0]
  }
  const node = document.getIn(path, true)
  return isNode(node) ? node.range?.[0] : undefined
}

function missingSecrets(file: RunFile, env: ResolveContext['env']): readonly Problem[] {
  return secretFields(file).flatMap(({ path, value }) =>
    secretOf(value, env) === undefined
      ? [
          {
            code: 'E_CONFIG_SECRET' as const,
            path,
            message: `${path.join('.')}: the environment variable ${value.slice(4)} is not set: export it first`,
          },
        ]
      : [],
  )
}

interface TextField {
  readonly path: readonly string[]
  readonly value: string
}

function fieldsOf(path: readonly string[], values: Readonly<Record<string, string>>): readonly TextField[] {
  return Object.entries(values).map(([key, value]) => ({ path: [...path, key], value }))
}

/** Every field that may be `env:NAME`. */
function secretFields(file: RunFile): readonly TextField[] {
  return [
    ...fieldsOf(['harness', 'env'], file.harness.env),
    ...file.elastic.standalone.flatMap(({ apiKey, headers }, index) => {
      const at = ['elastic', 'standalone', String(index)]
      return [
        ...(apiKey === undefined ? [] : [{ path: [...at, 'apiKey'], value: apiKey }]),
        ...fieldsOf([...at, 'headers'], headers),
      ]
    }),
  ]
}

function withPaths(
  file: FilledRunFile,
  context: ParseContext,
  changes: readonly Override[],
): FilledRunFile & { readonly name: string } {
  const copy = structuredClone(file)
  for (const [section, field] of PATHS) {
    const holder = copy[section] as Record<string, unknown>
    const path = holder[field]
    if (typeof path !== 'string') continue
    const isOverride = changes.some((c) => c.path[0] === section && (c.path.length === 1 || c.path[1] === field))
    holder[field] = absolutePath(path, isOverride ? context.cwd : dirname(context.file), context.home)
  }
  copy.paths.runs = absolutePath(copy.paths.runs, context.cwd, context.home)
  copy.paths.cache = absolutePath(copy.paths.cache, context.cwd, context.home)
  const fileName = basename(context.file)
    .replace(/\.ya?ml$/i, '')
    .replaceAll(/[^\w.-]/g, '-')
  const { name = fileName, ...rest } = copy
  return { name, ...rest }
}

/** @throws GyreError E_CONFIG_NOT_FOUND with this message. */
export function readText(file: string, message: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw configError('E_CONFIG_NOT_FOUND', message, error)
  }
}

function labelOf(file: string, cwd: string): string {
  const short = relative(cwd, file)
  return short.startsWith('..') ? file : short
}

/** One error that says every problem with its place. */
export function failure(problems: readonly Problem[], where: (path: readonly string[]) => string): GyreError {
  const placed = problems.map((problem) => ({ ...problem, place: where(problem.path) }))
  const message = placed.map((p) => `${p.place}: ${p.message}`).join('\n')
  const code = problems[0]?.code ?? 'E_CONFIG_TYPE'
  return new GyreError(message, {
    boundary: 'config',
    code,
    details: {
      problems: placed.map((p) => ({ code: p.code, path: p.path.join('.'), place: p.place, message: p.message })),
    },
  })
}

export function configError(code: `E_${Uppercase<string>}`, message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'config', code, cause })
}
