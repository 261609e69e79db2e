/**
 * @file A call as tags, the way Qwen3-Coder and its successors write it:
 *
 *   <function=NAME>
 *   <parameter=KEY>
 *   VALUE
 *   </parameter>
 *   </function>
 *
 * A value is literal text between two line breaks; what it is as JSON follows from the schema of the tool. Numbers keep
 * their digits, so that nothing is lost on the way to the harness.
 */
import type { Json, ToolSpec } from '../core/items.ts'
import type { CallText } from './turn-parser.ts'

const CALL = /^\s*<function=([^>\n]+)>\n?([\s\S]*?)<\/function>\s*$/
/** A closing tag ends a value only where the next parameter or the end follows: values may quote the tags. */
const PARAMETER = /\s*<parameter=([^>\n]+)>([\s\S]*?)<\/parameter>(?=\s*(?:<parameter=|$))/y
const PYTHON_LITERALS: Readonly<Record<string, string>> = { True: 'true', False: 'false', None: 'null' }

/** @param tools Their schemas say what a value is. A tool or parameter nobody declared takes what its text looks like. */
export function readXmlCall(text: string, tools: readonly ToolSpec[]): CallText | undefined {
  const [, name, body] = CALL.exec(text) ?? []
  if (name === undefined || body === undefined) return undefined
  const schemas = propertiesOf(tools.find((tool) => tool.name === name))
  const members = new Map<string, string>()
  PARAMETER.lastIndex = 0
  let end = 0
  for (let match = PARAMETER.exec(body); match !== null; match = PARAMETER.exec(body)) {
    const [, key = '', value = ''] = match
    members.set(key, valueText(trimmedOnce(value), schemas?.[key]))
    end = PARAMETER.lastIndex
  }
  if (body.slice(end).trim() !== '') return undefined
  const entries = [...members].map(([key, value]) => `${JSON.stringify(key)}: ${value}`)
  return { name, argumentsText: `{${entries.join(', ')}}` }
}

/** The template puts one line break on each side. */
function trimmedOnce(value: string): string {
  return value.replace(/^\n/, '').replace(/\n$/, '')
}

function propertiesOf(tool: ToolSpec | undefined): Readonly<Record<string, Json>> | undefined {
  const { parameters } = tool ?? {}
  return isObject(parameters) && isObject(parameters['properties']) ? parameters['properties'] : undefined
}

/** JSON text of a literal. */
function valueText(value: string, schema: Json | undefined): string {
  const types = typesOf(schema)
  const isNull = value === 'null' || value === 'None'
  if (isNull && (types.has('null') || (types.size > 0 && !types.has('string')))) return 'null'
  if (types.has('string')) return JSON.stringify(value)
  return jsonOrPython(value) ?? JSON.stringify(value)
}

/** Types the schema allows; none when it does not say. */
function typesOf(schema: Json | undefined): ReadonlySet<string> {
  if (!isObject(schema)) return new Set()
  const { type, anyOf, oneOf, enum: values } = schema
  if (typeof type === 'string') return new Set([type])
  if (Array.isArray(type)) return new Set(type.filter((name) => typeof name === 'string'))
  const alternatives = [anyOf, oneOf].flatMap((list): readonly Json[] => (Array.isArray(list) ? (list as Json[]) : []))
  if (alternatives.length > 0) return new Set(alternatives.flatMap((inner) => [...typesOf(inner)]))
  return Array.isArray(values) && values.every((inner) => typeof inner === 'string') ? new Set(['string']) : new Set()
}

function jsonOrPython(value: string): string | undefined {
  const text = value.trim()
  if (Object.hasOwn(PYTHON_LITERALS, text)) return PYTHON_LITERALS[text]
  try {
    JSON.parse(text)
    return text
  } catch {
    return undefined
  }
}

function isObject(value: Json | undefined): value is { readonly [key: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
