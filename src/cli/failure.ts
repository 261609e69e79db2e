/** @file How a failed command ends: the text, the JSON, the exit code. */
import { CommanderError } from 'commander'
import { errorText, GyreError } from '../core/errors.ts'
import type { CliContext } from './context.ts'

/** 0 done, 1 it failed, 2 it was asked wrongly: bad arguments, config or task. */
export type ExitCode = 0 | 1 | 2

const ASKED_WRONGLY = new Set(['config', 'task'])

/** Says what went wrong, once, and returns the exit code. */
export function reportFailure(error: unknown, context: CliContext, asJson: boolean): ExitCode {
  // Commander has printed its own message; --help and --version end here too.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
  if (error instanceof GyreError) {
    if (asJson) context.print(JSON.stringify({ error: errorJson(error) }))
    else context.warn(errorBlock(error, context))
    return ASKED_WRONGLY.has(error.boundary) ? 2 : 1
  }
  if (asJson) {
    const message = errorText(error)
    context.print(
      JSON.stringify({ error: { code: 'E_BUG', boundary: 'gyre', message, details: { stack: stackOf(error) } } }),
    )
  } else {
    const { colors } = context
    context.warn(
      `${colors.red('error')}: this is a bug in gyre, please report it with the lines below\n${stackOf(error)}`,
    )
  }
  return 1
}

function errorJson(error: GyreError): Readonly<Record<string, unknown>> {
  const { code, boundary, message, retryable, details } = error
  return { code, boundary, message, retryable, details }
}

function errorBlock(error: GyreError, { colors }: CliContext): string {
  const { problems } = error.details
  // A config error holds every mistake, each with a code of its own.
  const named = Array.isArray(problems) ? (problems as { code: string }[]).map((problem) => problem.code) : []
  const lines = error.message
    .split('\n')
    .map((line, i) => `${colors.red('error')} ${colors.bold(named[i] ?? error.code)}: ${line}`)
  if (error.cause !== undefined) lines.push(colors.dim(`  because: ${errorText(error.cause)}`))
  if (error.retryable) lines.push(colors.dim('  the same command may succeed later'))
  lines.push(colors.dim(`  more about ${named.length > 1 ? 'these codes' : error.code}: docs/errors.md`))
  return lines.join('\n')
}

function stackOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const own = error.stack ?? `${error.name}: ${error.message}`
  return error.cause === undefined ? own : `${own}\ncaused by ${stackOf(error.cause)}`
}
