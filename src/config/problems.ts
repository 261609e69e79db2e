/** @file Puts what zod found into words: the field, what was expected, what was found, and the nearest name. */
import type { z } from 'zod'
import type { JsonSchema } from './json-schema.ts'
import { fieldAt, fieldsAt, leafPaths } from './json-schema.ts'
import { nearest } from './nearest.ts'

export type ProblemCode =
  | 'E_CONFIG_UNKNOWN_KEY'
  | 'E_CONFIG_TYPE'
  | 'E_CONFIG_MISSING'
  | 'E_CONFIG_SECRET'
  | 'E_CONFIG_CAPACITY'
  | 'E_CONFIG_CONFLICT'

export interface Problem {
  readonly code: ProblemCode
  readonly path: readonly string[]
  readonly message: string
}

type Issue = z.core.$ZodIssue

/** @param input what was parsed, to say what was found. @param whole how a problem with all of it is named. */
export function problemsOf(
  issues: readonly Issue[],
  input: unknown,
  schema: JsonSchema,
  whole = 'the run file',
): readonly Problem[] {
  return issues.flatMap((issue) => {
    const path = issue.path.map(String)
    if (issue.code === 'unrecognized_keys') return issue.keys.map((key) => unknownKey([...path, key], schema))
    const found = valueAt(input, path)
    // A bound is a check of its own to zod: whether a number is whole only the schema says.
    const isWhole = issue.code === 'invalid_type' && fieldAt(schema, path)?.type === 'integer'
    const wanted = isWhole ? 'a whole number' : expected(issue)
    if (found === undefined) {
      return [{ code: 'E_CONFIG_MISSING', path, message: `${path.join('.')} is missing: expected ${wanted}` }]
    }
    const message = `${path.join('.') || whole}: expected ${wanted}, found ${described(found)}`
    return [{ code: 'E_CONFIG_TYPE', path, message }]
  })
}

function unknownKey(path: readonly string[], schema: JsonSchema): Problem {
  const key = path.at(-1) ?? ''
  const section = path.slice(0, -1)
  const siblings = fieldsAt(schema, section) ?? []
  const close = nearest(key, siblings)
  const elsewhere = leafPaths(schema).filter((leaf) => leaf.split('.').at(-1) === key)
  let hint = `known here: ${siblings.join(', ')}`
  if (elsewhere.length > 0) hint = `did you mean ${elsewhere.join(' or ')}?`
  else if (close !== undefined) hint = `did you mean ${[...section, close].join('.')}?`
  return { code: 'E_CONFIG_UNKNOWN_KEY', path, message: `unknown key ${path.join('.')}: ${hint}` }
}

const NAMES: Readonly<Record<string, string>> = {
  int: 'a whole number',
  number: 'a number',
  string: 'text',
  boolean: 'true or false',
  array: 'a list',
  object: 'a section',
  record: 'a section',
}

const NOT_EMPTY: Readonly<Record<string, string>> = {
  string: 'a text that is not empty',
  array: 'a list that is not empty',
}

function expected(issue: Issue): string {
  switch (issue.code) {
    case 'invalid_type':
      return NAMES[issue.expected] ?? issue.expected
    case 'invalid_value':
      return issue.values.length === 1 ? String(issue.values[0]) : `one of ${issue.values.join(', ')}`
    case 'too_small':
      return NOT_EMPTY[issue.origin] ?? `at least ${issue.minimum}`
    case 'too_big':
      return `at most ${issue.maximum}`
    case 'invalid_format':
    case 'custom':
    case 'not_multiple_of':
    case 'unrecognized_keys':
    case 'invalid_union':
    case 'invalid_key':
    case 'invalid_element':
      return issue.message
    default:
      return issue satisfies never
  }
}

function described(value: unknown): string {
  if (value === null) return 'nothing'
  if (typeof value === 'string') return `the text "${value}"`
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'a section'
  return JSON.stringify(value)
}

function valueAt(input: unknown, path: readonly string[]): unknown {
  let here = input
  for (const key of path) {
    if (typeof here !== 'object' || here === null) return undefined
    here = (here as Record<string, unknown>)[key]
  }
  return here
}
