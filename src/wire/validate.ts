import type { z } from 'zod'
import { GyreError } from '../core/errors.ts'
import type { Json } from '../core/items.ts'

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

/** Nesting that nobody writes by hand, well below what recursion over a value stands. [levels] */
const MAX_DEPTH = 200

/**
 * A value that everything behind the dialect may walk by recursion.
 * @throws GyreError E_WIRE_MALFORMED when it is nested too deeply.
 */
export function shallowJson(value: object, path: string): Json {
  let level: readonly object[] = [value]
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > MAX_DEPTH) throw malformed(path, `is nested more than ${MAX_DEPTH} levels deep`)
    level = level.flatMap((part) => Object.values(part).filter((inner) => typeof inner === 'object' && inner !== null))
  }
  return value as Json
}

function lowerFirst(text: string): string {
  return text.slice(0, 1).toLowerCase() + text.slice(1)
}
