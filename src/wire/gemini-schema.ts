/** @file Gemini's own kind of schema as JSON Schema. */
import type { Json } from '../core/items.ts'

type Fields = { readonly [key: string]: Json }

/** Where a schema holds further ones: one, a list of them, or one for each name. */
const ONE: ReadonlySet<string> = new Set(['items', 'additionalProperties'])
const LISTS: ReadonlySet<string> = new Set(['anyOf', 'prefixItems'])
const NAMED: ReadonlySet<string> = new Set(['properties', 'defs'])

/** `STRING` is `string` in JSON Schema; everything else is as it was. */
export function lowerCaseTypes(schema: Json): Json {
  if (!isFields(schema)) return schema
  return mapped(schema, (value, key) => {
    if (key === 'type' && typeof value === 'string') return value.toLowerCase()
    if (ONE.has(key)) return lowerCaseTypes(value)
    if (LISTS.has(key) && Array.isArray(value)) return (value as readonly Json[]).map(lowerCaseTypes)
    return NAMED.has(key) && isFields(value) ? mapped(value, lowerCaseTypes) : value
  })
}

function mapped(fields: Fields, map: (value: Json, key: string) => Json): Json {
  return Object.fromEntries(Object.entries(fields).map(([key, value]): [string, Json] => [key, map(value, key)]))
}

function isFields(value: Json): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
