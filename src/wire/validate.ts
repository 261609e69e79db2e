import type { z } from 'zod'
import { GyreError } from '../core/errors.ts'

/** @throws GyreError E_WIRE_MALFORMED that names the first wrong place under `path`. */
export function validate<T>(schema: z.ZodType<T>, value: unknown, path: string): T {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const issue = result.error.issues[0]
  const where = [path, ...(issue?.path ?? []).map(String)].filter((part) => part !== '').join('.')
  throw malformed(where, issue?.message ?? 'is not what the dialect allows')
}

export function malformed(where: string, what: string): GyreError {
  return new GyreError(`${where === '' ? 'the request body' : where}: ${lowerFirst(what)}`, {
    boundary: 'wire',
    code: 'E_WIRE_MALFORMED',
  })
}

/** Content or an option we cannot honor. Refused rather than dropped: a silent loss would train on another request. */
export function unsupported(where: string, what: string): GyreError {
  return new GyreError(`${where}: ${what} is not supported here; this endpoint takes text and tool calls only`, {
    boundary: 'wire',
    code: 'E_WIRE_UNSUPPORTED',
  })
}

function lowerFirst(text: string): string {
  return text.slice(0, 1).toLowerCase() + text.slice(1)
}
