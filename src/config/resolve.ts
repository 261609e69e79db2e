/** @file From the text of a run file to what the program reads: ms and bytes, absolute paths, secrets. */
import { homedir } from 'node:os'
import { isAbsolute, resolve } from 'node:path'
import { parseDuration } from '../core/durations.ts'
import type { FilledRunFile } from './levers.ts'
import type { RunFile } from './schema.ts'
import { parseSize } from './sizes.ts'

type Replace<T, Gone extends keyof T, With> = Omit<T, Gone> & With
type DeepReadonly<T> = T extends (infer Item)[]
  ? readonly DeepReadonly<Item>[]
  : T extends object
    ? { readonly [Key in keyof T]: DeepReadonly<T[Key]> }
    : T

/** A run file, ready to use. Paths are absolute; `...Ms` are milliseconds, `...Bytes` bytes. */
export type RunConfig = DeepReadonly<
  Replace<
    FilledRunFile,
    'name' | 'harness' | 'sandbox' | 'rollout' | 'gateway' | 'elastic',
    {
      name: string
      harness: Replace<RunFile['harness'], 'timeout', { timeoutMs: number }>
      sandbox: Replace<RunFile['sandbox'], 'memory' | 'fileSize', { memoryBytes: number; fileBytes: number }>
      rollout: Replace<RunFile['rollout'], 'overallTimeout', { overallTimeoutMs: number }>
      gateway: Replace<RunFile['gateway'], 'bodyLimit' | 'keepAlive', { bodyLimitBytes: number; keepAliveMs: number }>
      elastic: Replace<
        FilledRunFile['elastic'],
        'handoverTimeout' | 'heartbeat' | 'healthTimeout',
        { handoverMs: number; heartbeatMs: number; healthMs: number }
      >
      /** `paths.runs` / `name`. */
      runFolder: string
    }
  >
>

export interface ResolveContext {
  readonly cwd: string
  readonly home?: string
  readonly env: Readonly<Record<string, string | undefined>>
}

/** Expands ~ and makes absolute. */
export function absolutePath(path: string, base: string, home: string = homedir()): string {
  if (path === '~' || path.startsWith('~/')) return resolve(home, path.slice(2))
  return isAbsolute(path) ? path : resolve(base, path)
}

/** Value of `env:NAME`; undefined when the variable is not set. Other text stands for itself. */
export function secretOf(value: string, env: ResolveContext['env']): string | undefined {
  return value.startsWith('env:') ? env[value.slice(4)] : value
}

/** @param file has absolute paths already, and its secrets were checked. */
export function resolveConfig(file: FilledRunFile & { readonly name: string }, env: ResolveContext['env']): RunConfig {
  const { timeout, ...harness } = file.harness
  const { memory, fileSize, ...sandbox } = file.sandbox
  const { overallTimeout, ...rollout } = file.rollout
  const { bodyLimit, keepAlive, ...gateway } = file.gateway
  const { handoverTimeout, heartbeat, healthTimeout, standalone, ...elastic } = file.elastic
  const revealed = (values: Readonly<Record<string, string>>): Record<string, string> =>
    Object.fromEntries(Object.entries(values).map(([key, value]) => [key, secretOf(value, env) ?? '']))
  return {
    ...file,
    harness: { ...harness, env: revealed(harness.env), timeoutMs: parseDuration(timeout) },
    sandbox: { ...sandbox, memoryBytes: parseSize(memory), fileBytes: parseSize(fileSize) },
    rollout: { ...rollout, overallTimeoutMs: parseDuration(overallTimeout) },
    gateway: { ...gateway, bodyLimitBytes: parseSize(bodyLimit), keepAliveMs: parseDuration(keepAlive) },
    elastic: {
      ...elastic,
      handoverMs: parseDuration(handoverTimeout),
      heartbeatMs: parseDuration(heartbeat),
      healthMs: parseDuration(healthTimeout),
      standalone: standalone.map(({ apiKey, headers, ...engine }) => ({
        ...engine,
        ...(apiKey === undefined ? {} : { apiKey: secretOf(apiKey, env) ?? '' }),
        headers: revealed(headers),
      })),
    },
    runFolder: resolve(file.paths.runs, file.name),
  }
}
