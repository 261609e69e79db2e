/** @file A body of `POST /v1/chat/completions` as canonical items. */
import { z } from 'zod'
import type { AssistantItem, Item, ToolCall, ToolSpec } from '../core/items.ts'
import { systemItem } from './canonical.ts'
import type { Envelope } from './dialect.ts'
import { malformed, shallowJson, unsupported, validate } from './validate.ts'

const NEITHER = { error: 'must be a string or a list of typed parts' }
const Content = z.union([z.string(), z.array(z.looseObject({ type: z.string() }))], NEITHER).nullish()

const Message = z.looseObject({ role: z.string() })

const Body = z.looseObject({
  model: z.string().default(''),
  tools: z.array(z.looseObject({ type: z.string() })).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  max_tokens: z.number().int().positive().nullish(),
  max_completion_tokens: z.number().int().positive().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  n: z.number().int().nullish(),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  logprobs: z.boolean().nullish(),
  functions: z.array(z.unknown()).nullish(),
  modalities: z.array(z.string()).nullish(),
})

const Tool = z.looseObject({
  function: z.looseObject({
    name: z.string().min(1),
    description: z.string().nullish(),
    parameters: z.looseObject({}).nullish(),
  }),
})

const ToolCallEntry = z.looseObject({
  id: z.string().min(1),
  type: z.string().default('function'),
  function: z.looseObject({ name: z.string(), arguments: z.string() }).optional(),
})

const SpokenMessage = z.looseObject({ content: Content })
const ToolMessage = z.looseObject({ content: Content, tool_call_id: z.string(), name: z.string().nullish() })
const AssistantMessage = z.looseObject({
  content: Content,
  reasoning_content: z.string().nullish(),
  reasoning: z.string().nullish(),
  tool_calls: z.array(z.unknown()).nullish(),
})

type Parts = z.infer<typeof Content>

/** @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED. */
export function parseOpenAiChatEnvelope(body: unknown): Envelope {
  const request = validate(Body, body, '')
  refuseOptions(request)
  return {
    model: request.model,
    tools: (request.tools ?? []).map((tool, i) => toolSpec(tool, `tools.${i}`)),
    deferredTools: new Map(),
    system: [],
    stream: request.stream ?? false,
    maxTokens: request.max_completion_tokens ?? request.max_tokens ?? undefined,
    includeUsage: request.stream_options?.include_usage ?? false,
    hints: { temperature: request.temperature ?? undefined, topP: request.top_p ?? undefined },
  }
}

function refuseOptions(request: z.infer<typeof Body>): void {
  if ((request.n ?? 1) !== 1) throw unsupported('n', `asking for ${String(request.n)} answers`)
  if (request.stop !== null && request.stop !== undefined && request.stop.length > 0) {
    throw unsupported('stop', 'a stop text')
  }
  if (request.logprobs === true) throw unsupported('logprobs', 'asking for log-probs')
  if ((request.functions ?? []).length > 0) throw unsupported('functions', 'the retired functions field')
  if ((request.modalities ?? []).some((modality) => modality !== 'text')) {
    throw unsupported('modalities', 'output other than text')
  }
}

function toolSpec(entry: { readonly type: string }, path: string): ToolSpec {
  if (entry.type !== 'function') throw unsupported(path, `a tool of type "${entry.type}"`)
  const { function: tool } = validate(Tool, entry, path)
  return {
    name: tool.name,
    description: tool.description ?? '',
    parameters: shallowJson(tool.parameters ?? { type: 'object', properties: {} }, `${path}.function.parameters`),
  }
}

/** One element of `messages`. */
export function parseOpenAiChatMessage(element: unknown, path: string): readonly Item[] {
  const message = validate(Message, element, path)
  switch (message.role) {
    case 'system':
    case 'developer':
      return systemItem(texts(validate(SpokenMessage, message, path).content, `${path}.content`))
    case 'user':
      return texts(validate(SpokenMessage, message, path).content, `${path}.content`).map((text) => ({
        kind: 'user',
        text,
      }))
    case 'assistant':
      return [assistantItem(message, path)]
    case 'tool': {
      const result = validate(ToolMessage, message, path)
      const text = texts(result.content, `${path}.content`).join('\n')
      return [{ kind: 'tool-result', callId: result.tool_call_id, name: result.name ?? '', text, isError: false }]
    }
    default:
      throw unsupported(path, `a message of role "${message.role}"`)
  }
}

function assistantItem(message: unknown, path: string): AssistantItem {
  const turn = validate(AssistantMessage, message, path)
  for (const field of ['function_call', 'audio', 'refusal']) {
    const value = turn[field]
    if (value !== null && value !== undefined && value !== '') {
      throw unsupported(`${path}.${field}`, `an assistant message with ${field}`)
    }
  }
  return {
    kind: 'assistant',
    thinking: turn.reasoning_content ?? turn.reasoning ?? '',
    text: texts(turn.content, `${path}.content`).join(''),
    toolCalls: (turn.tool_calls ?? []).map((call, i) => toolCall(call, `${path}.tool_calls.${i}`)),
  }
}

function toolCall(value: unknown, path: string): ToolCall {
  const call = validate(ToolCallEntry, value, path)
  if (call.type !== 'function') throw unsupported(path, `a tool call of type "${call.type}"`)
  if (call.function === undefined) throw malformed(path, 'must hold function.name and function.arguments')
  return { id: call.id, name: call.function.name, argumentsText: call.function.arguments }
}

/** One text per content part: a bare string equals an array with one text part, and null equals an empty string. */
function texts(content: Parts, path: string): readonly string[] {
  if (content === null || content === undefined) return ['']
  if (typeof content === 'string') return [content]
  return content.map((part, i) => {
    if (part.type !== 'text') throw unsupported(`${path}.${i}`, `content of type "${part.type}"`)
    if (typeof part['text'] !== 'string') throw malformed(`${path}.${i}.text`, 'must be a string')
    return part['text']
  })
}
