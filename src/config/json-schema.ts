/** @file The JSON Schema of a run file, for editors and for the documentation. */
import { z } from 'zod'
import { RunFileSchema } from './schema.ts'

export interface JsonSchema {
  readonly $schema?: string
  readonly title?: string
  readonly type?: string
  readonly description?: string
  readonly default?: unknown
  readonly enum?: readonly unknown[]
  readonly minimum?: number
  readonly maximum?: number
  readonly items?: JsonSchema
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, JsonSchema>>
  readonly additionalProperties?: boolean | JsonSchema
}

/** Draft 7, because editors know it best. */
export function configJsonSchema(): JsonSchema {
  const schema = z.toJSONSchema(RunFileSchema, { io: 'input', target: 'draft-7' }) as JsonSchema
  return { ...schema, title: 'Gyre run file' }
}

/** The field or section at `path`; undefined when there is none. */
export function fieldAt(schema: JsonSchema, path: readonly string[]): JsonSchema | undefined {
  let here: JsonSchema | undefined = schema
  for (const key of path) here = here?.properties?.[key] ?? (/^\d+$/.test(key) ? here?.items : undefined)
  return here
}

/** Names of the fields of the section at `path`; undefined when there is no such section. */
export function fieldsAt(schema: JsonSchema, path: readonly string[]): readonly string[] | undefined {
  const section = fieldAt(schema, path)?.properties
  return section === undefined ? undefined : Object.keys(section)
}

/** Dotted names of every field, sections left out. */
export function leafPaths(schema: JsonSchema, prefix = ''): readonly string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, field]) => {
    const path = `${prefix}${key}`
    return field.properties === undefined ? [path] : leafPaths(field, `${path}.`)
  })
}
