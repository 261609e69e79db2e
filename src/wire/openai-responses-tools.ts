/** @file The `tools` of a Responses request: functions, freeform tools, and namespaces of both. */
import { z } from 'zod'
import type { ToolSpec } from '../core/items.ts'
import { calledName } from './openai-responses-echo.ts'
import { shallowJson, unsupported, validate } from './validate.ts'

const Entry = z.looseObject({ type: z.string() })
const Named = z.looseObject({
  name: z.string().min(1),
  description: z.string().nullish(),
  defer_loading: z.boolean().nullish(),
})
const FunctionTool = Named.extend({ parameters: z.looseObject({}).nullish() })
const FreeformTool = Named.extend({
  format: z.looseObject({ type: z.string(), syntax: z.string().nullish(), definition: z.string().nullish() }).nullish(),
})
const Namespace = Named.extend({ tools: z.array(Entry) })

export const ResponsesTools = z.array(Entry)
type AnyTool = z.infer<typeof Entry>

/**
 * Tools that OpenAI's servers run and clients offer unasked, Codex among them. Nobody runs them here, so the policy
 * never hears of them. Any other tool of the server is refused, since somebody asked for it.
 */
const OFFERED_UNASKED = /^(web_search(_preview)?(_\d{4}_\d{2}_\d{2})?|image_generation)$/

/** @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED. */
export function responsesToolSpecs(tools: readonly AnyTool[]): readonly ToolSpec[] {
  return tools.flatMap((entry, i) => {
    const path = `tools.${i}`
    if (OFFERED_UNASKED.test(entry.type)) return []
    return entry.type === 'namespace' ? namespaceSpecs(entry, path) : [toolSpec(entry, path)]
  })
}

/** What the namespace says about itself leads the description of its first tool. */
function namespaceSpecs(entry: AnyTool, path: string): readonly ToolSpec[] {
  const space = validate(Namespace, entry, path)
  return space.tools.map((tool, i) => {
    const spec = toolSpec(tool, `${path}.tools.${i}`)
    const description = i === 0 ? paragraphs(space.description, spec.description) : spec.description
    return { ...spec, name: calledName(space.name, spec.name), description, namespace: space.name }
  })
}

function toolSpec(entry: AnyTool, path: string): ToolSpec {
  if (entry.type === 'function') return functionSpec(entry, path)
  if (entry.type === 'custom') return freeformSpec(entry, path)
  throw unsupported(path, `a tool of type "${entry.type}"`)
}

function functionSpec(entry: AnyTool, path: string): ToolSpec {
  const tool = validate(FunctionTool, entry, path)
  refuseDeferred(tool, path)
  const { name, description, parameters } = tool
  return {
    name,
    description: description ?? '',
    parameters: shallowJson(parameters ?? { type: 'object', properties: {} }, `${path}.parameters`),
  }
}

/** The policy writes JSON only, so it gives the text as an argument; a grammar is told, not enforced. */
function freeformSpec(entry: AnyTool, path: string): ToolSpec {
  const tool = validate(FreeformTool, entry, path)
  refuseDeferred(tool, path)
  const { name, description, format } = tool
  const grammar = format?.definition ?? ''
  const rule = grammar === '' ? '' : `The input must follow this ${format?.syntax ?? ''} grammar:\n${grammar}`
  return {
    name,
    description: paragraphs(description, rule),
    parameters: { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] },
    isFreeform: true,
  }
}

function refuseDeferred(tool: z.infer<typeof Named>, path: string): void {
  if (tool.defer_loading === true) throw unsupported(`${path}.defer_loading`, 'a tool that is loaded by a search')
}

function paragraphs(...texts: readonly (string | null | undefined)[]): string {
  return texts.filter((text) => text !== null && text !== undefined && text !== '').join('\n\n')
}
