/** @file What a verb may touch of the outside: streams, environment, folders. Only src/cli reads process. */
import { homedir } from 'node:os'
import picocolors from 'picocolors'

export type Colors = ReturnType<typeof picocolors.createColors>

export interface CliContext {
  readonly cwd: string
  readonly home: string
  readonly env: Readonly<Record<string, string | undefined>>
  /** Results go here. */
  readonly print: (text: string) => void
  /** Progress, warnings and errors go here. */
  readonly warn: (text: string) => void
  /** True when a person watches standard output. */
  readonly isTty: boolean
  /** Columns of the terminal. */
  readonly width: () => number
  readonly colors: Colors
}

export function processContext(): CliContext {
  const { stdout, stderr, env } = process
  const isTty = stdout.isTTY
  const wantsColor =
    env['FORCE_COLOR'] !== undefined || (isTty && env['NO_COLOR'] === undefined && env['TERM'] !== 'dumb')
  return {
    cwd: process.cwd(),
    home: env['HOME'] ?? homedir(),
    env,
    print: (text) => stdout.write(`${text}\n`),
    warn: (text) => stderr.write(`${text}\n`),
    isTty,
    width: () => stdout.columns ?? 100,
    colors: picocolors.createColors(wantsColor),
  }
}
