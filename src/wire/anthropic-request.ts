/** @file A body of `POST /v1/messages` as canonical items. */
import { z } from 'zod'
import type { AssistantItem, Item, ToolCall, ToolSpec } from '../core/items.ts'
import { systemItem } from './canonical.ts'
import type { Envelope } from './dialect.ts'
import { malformed, shallowJson, unsupported, validate } from './validate.ts'

const Block = z.looseObject({ type: z.string() })
const NEITHER = { error: 'must be a string or a list of typed parts' }
const Content = z.union([z.string(), z.array(Block)], NEITHER)

const Message = z.looseObject({ role: z.string(), content: Content })

const NamedTool = z.looseObject({ name: z.string().min(1), type: z.string().nullish() })

const Body = z.looseObject({
  model: z.string().default(''),
  system: Content.nullish(),
  tools: z.array(NamedTool).nullish(),
  stream: z.boolean().nullish(),
  max_tokens: z.number().int().positive().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  stop_sequences: z.array(z.string()).nullish(),
  mcp_servers: z.array(z.unknown()).nullish(),
  tool_choice: z.looseObject({ type: z.string() }).nullish(),
})

const Tool = z.looseObject({
  name: z.string(),
  description: z.string().nullish(),
  input_schema: z.looseObject({}),
  defer_loading: z.boolean().nullish(),
})
const TextBlock = z.looseObject({ text: z.string() })
const ThinkingBlock = z.looseObject({ thinking: z.string() })
const ToolUseBlock = z.looseObject({ id: z.string().min(1), name: z.string(), input: z.looseObject({}) })
const ToolResultBlock = z.looseObject({
  tool_use_id: z.string(),
  content: Content.nullish(),
  is_error: z.boolean().nullish(),
})
const ToolReferenceBlock = z.looseObject({ tool_name: z.string() })
const ToolChangeBlock = z.looseObject({
  tool: z.looseObject({ type: z.string(), name: z.string().nullish(), definition: NamedTool.nullish() }),
})

type Blocks = z.infer<typeof Content>
type AnyBlock = z.infer<typeof Block>

/**
 * `output_config`, `thinking`, `context_management` and `disable_parallel_tool_use` are wishes that a policy cannot
 * be held to. Nobody reads them, and a schema asked for in `output_config.format` is not enforced.
 * @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED.
 */
export function parseAnthropicEnvelope(body: unknown): Envelope {
  const request = validate(Body, body, '')
  refuseOptions(request)
  const tools = (request.tools ?? []).map((tool, i) => toolEntry(tool, `tools.${i}`))
  return {
    model: request.model,
    tools: tools.filter((tool) => !tool.deferred).map((tool) => tool.spec),
    deferredTools: new Map(tools.map((tool) => [tool.spec.name, tool.spec])),
    system: systemItem(blocksOf(request.system ?? []).map((block, i) => textOf(block, `system.${i}`))),
    stream: request.stream ?? false,
    maxTokens: request.max_tokens ?? undefined,
    includeUsage: true,
    hints: { temperature: request.temperature ?? undefined, topP: request.top_p ?? undefined },
  }
}

function refuseOptions(request: z.infer<typeof Body>): void {
  if ((request.stop_sequences ?? []).length > 0) throw unsupported('stop_sequences', 'a stop text')
  if ((request.mcp_servers ?? []).length > 0) throw unsupported('mcp_servers', 'a tool server')
  const choice = request.tool_choice?.type ?? 'auto'
  if (choice !== 'auto' && (request.tools ?? []).length > 0) {
    throw unsupported('tool_choice', `the tool choice "${choice}"`)
  }
}

/** One element of `messages`. */
export function parseAnthropicMessage(element: unknown, path: string, envelope: Envelope): readonly Item[] {
  const message = validate(Message, element, path)
  return messageItems(message.role, blocksOf(message.content), path, envelope.deferredTools)
}

/** A deferred tool is not in the header: it becomes known where a tool result refers to it. */
function toolEntry(
  entry: z.infer<typeof NamedTool>,
  path: string,
): { readonly spec: ToolSpec; readonly deferred: boolean } {
  if (entry.type !== undefined && entry.type !== null && entry.type !== 'custom') {
    throw unsupported(path, `the server tool "${entry.name}" of type "${entry.type}"`)
  }
  const tool = validate(Tool, entry, path)
  const spec = {
    name: tool.name,
    description: tool.description ?? '',
    parameters: shallowJson(tool.input_schema, `${path}.input_schema`),
  }
  return { spec, deferred: tool.defer_loading ?? false }
}

function messageItems(
  role: string,
  blocks: readonly AnyBlock[],
  path: string,
  specs: ReadonlyMap<string, ToolSpec>,
): readonly Item[] {
  switch (role) {
    case 'system':
      return systemItem(blocks.map((block, i) => systemText(block, `${path}.content.${i}`, specs)))
    case 'user':
      return blocks.map((block, i) => userItem(block, `${path}.content.${i}`, specs))
    case 'assistant':
      return [assistantItem(blocks, path)]
    default:
      throw malformed(`${path}.role`, `must be user, assistant or system, not "${role}"`)
  }
}

function userItem(block: AnyBlock, path: string, specs: ReadonlyMap<string, ToolSpec>): Item {
  if (block.type !== 'tool_result') return { kind: 'user', text: textOf(block, path) }
  const result = validate(ToolResultBlock, block, path)
  const text = blocksOf(result.content ?? '')
    .map((part, i) => resultText(part, `${path}.content.${i}`, specs))
    .join('\n')
  return { kind: 'tool-result', callId: result.tool_use_id, name: '', text, isError: result.is_error ?? false }
}

/** Tools may come and go in mid-conversation; the header that the policy saw stays as it was. */
function systemText(block: AnyBlock, path: string, specs: ReadonlyMap<string, ToolSpec>): string {
  if (block.type !== 'tool_addition' && block.type !== 'tool_removal') return textOf(block, path)
  const { type, name, definition } = validate(ToolChangeBlock, block, path).tool
  const isDefinition = type === 'tool_definition' && definition !== null && definition !== undefined
  if (block.type === 'tool_addition' && isDefinition) {
    return specText(toolEntry(definition, `${path}.tool.definition`).spec)
  }
  if (type !== 'tool_reference' || typeof name !== 'string') throw unsupported(`${path}.tool`, `a tool as "${type}"`)
  if (block.type === 'tool_removal') return `The tool "${name}" is no longer available.`
  return specText(knownSpec(name, specs, `${path}.tool.name`))
}

function resultText(block: AnyBlock, path: string, specs: ReadonlyMap<string, ToolSpec>): string {
  if (block.type !== 'tool_reference') return textOf(block, path)
  const { tool_name: name } = validate(ToolReferenceBlock, block, path)
  return specText(knownSpec(name, specs, `${path}.tool_name`))
}

function knownSpec(name: string, specs: ReadonlyMap<string, ToolSpec>, path: string): ToolSpec {
  const spec = specs.get(name)
  if (spec === undefined) throw malformed(path, `names the tool "${name}", which is not among the tools`)
  return spec
}

function specText({ name, description, parameters }: ToolSpec): string {
  return JSON.stringify({ name, description, parameters })
}

function assistantItem(blocks: readonly AnyBlock[], path: string): AssistantItem {
  let [thinking, text] = ['', '']
  const toolCalls: ToolCall[] = []
  blocks.forEach((block, i) => {
    const at = `${path}.content.${i}`
    if (block.type === 'thinking') thinking += validate(ThinkingBlock, block, at).thinking
    else if (block.type === 'tool_use') toolCalls.push(toolCall(block, at))
    // Thinking that only its writer could read, from a conversation that began elsewhere.
    else if (block.type !== 'redacted_thinking') text += textOf(block, at)
  })
  return { kind: 'assistant', thinking, text, toolCalls }
}

function toolCall(block: AnyBlock, path: string): ToolCall {
  const call = validate(ToolUseBlock, block, path)
  return { id: call.id, name: call.name, argumentsText: JSON.stringify(shallowJson(call.input, `${path}.input`)) }
}

/** A bare string equals an array with one text block; `cache_control` and other marks of a block are not content. */
function blocksOf(content: Blocks): readonly AnyBlock[] {
  return typeof content === 'string' ? [{ type: 'text', text: content }] : content
}

function textOf(block: AnyBlock, path: string): string {
  if (block.type !== 'text') throw unsupported(path, `content of type "${block.type}"`)
  return validate(TextBlock, block, path).text
}
