/** @file A body of `POST /v1/responses` as canonical items. */
import { z } from 'zod'
import type { AssistantItem, Item, ToolCall } from '../core/items.ts'
import { systemItem } from './canonical.ts'
import type { Envelope } from './dialect.ts'
import { calledName, freeformArguments, thinkingOfHandle } from './openai-responses-echo.ts'
import { ResponsesTools, responsesToolSpecs } from './openai-responses-tools.ts'
import { malformed, unsupported, validate } from './validate.ts'

const Choice = z.union([z.string(), z.looseObject({ type: z.string() })], { error: 'must be a mode or a tool' })

const Body = z.looseObject({
  model: z.string().default(''),
  instructions: z.string().nullish(),
  tools: ResponsesTools.nullish(),
  tool_choice: Choice.nullish(),
  text: z.looseObject({ format: z.looseObject({ type: z.string() }).nullish() }).nullish(),
  stream: z.boolean().nullish(),
  max_output_tokens: z.number().int().positive().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_logprobs: z.number().nullish(),
  include: z.array(z.string()).nullish(),
  background: z.boolean().nullish(),
})

const Typed = z.looseObject({ type: z.string() })
const Content = z.union([z.string(), z.array(Typed)], { error: 'must be a string or a list of typed parts' })
const Element = z.looseObject({ type: z.string().nullish() })
const Message = z.looseObject({ role: z.string(), content: Content })
const Texts = z.array(z.looseObject({ text: z.string() })).nullish()
const Reasoning = z.looseObject({ summary: Texts, content: Texts, encrypted_content: z.string().nullish() })
const Call = z.looseObject({
  id: z.string().nullish(),
  call_id: z.string().min(1),
  name: z.string().min(1),
  namespace: z.string().nullish(),
})
const FunctionCall = Call.extend({ arguments: z.string() })
const FreeformCall = Call.extend({ input: z.string() })
const CallOutput = z.looseObject({ call_id: z.string(), output: Content })

/**
 * `store` is a wish nobody reads: no response can be fetched later. `parallel_tool_calls`, `truncation`, `reasoning`
 * and `text.verbosity` cannot be held to a policy, and thinking is always given with its handle.
 * @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED.
 */
export function parseResponsesEnvelope(body: unknown): Envelope {
  const request = validate(Body, body, '')
  refuseOptions(request)
  return {
    model: request.model,
    tools: responsesToolSpecs(request.tools ?? []),
    deferredTools: new Map(),
    system: systemItem([request.instructions ?? '']),
    stream: request.stream ?? false,
    maxTokens: request.max_output_tokens ?? undefined,
    includeUsage: true,
    hints: { temperature: request.temperature ?? undefined, topP: request.top_p ?? undefined },
  }
}

/** Fields that refer to something that is kept on the server. */
const STORED = {
  previous_response_id: 'an earlier response that is kept here (send the whole input)',
  conversation: 'a conversation that is kept here (send the whole input)',
  prompt: 'a prompt that is kept here',
} as const

function refuseOptions(request: z.infer<typeof Body>): void {
  for (const [field, what] of Object.entries(STORED)) {
    if ((request[field] ?? '') !== '') throw unsupported(field, what)
  }
  refuseOutput(request)
  const choice = request.tool_choice ?? 'auto'
  if (choice !== 'auto' && (request.tools ?? []).length > 0) {
    throw unsupported('tool_choice', `the tool choice "${typeof choice === 'string' ? choice : choice.type}"`)
  }
}

function refuseOutput(request: z.infer<typeof Body>): void {
  if (request.background === true) throw unsupported('background', 'an answer that is fetched later')
  const format = request.text?.format?.type ?? 'text'
  if (format !== 'text') throw unsupported('text.format', `the output format "${format}"`)
  const asksLogprobs = (request.include ?? []).includes('message.output_text.logprobs')
  if (asksLogprobs || (request.top_logprobs ?? 0) > 0) throw unsupported('include', 'asking for log-probs')
}

/** The list that an `input` of one text stands for. */
export function responsesInput(input: unknown): unknown {
  return typeof input === 'string' ? [{ role: 'user', content: input }] : input
}

/** One element of `input`. One turn of the policy is several of them in a row. */
export function parseResponsesItem(element: unknown, path: string): readonly Item[] {
  const { type, ...fields } = validate(Element, element, path)
  switch (type ?? 'message') {
    case 'message':
      return messageItems(fields, path)
    case 'reasoning':
      return [{ ...SILENCE, thinking: thinkingOf(validate(Reasoning, fields, path)) }]
    case 'function_call':
      return [called(functionCall(fields, path))]
    case 'custom_tool_call':
      return [called(freeformCall(fields, path))]
    case 'function_call_output':
    case 'custom_tool_call_output':
      return [toolResult(fields, path)]
    default:
      throw unsupported(path, `an input item of type "${String(type)}"`)
  }
}

const SILENCE: AssistantItem = { kind: 'assistant', thinking: '', text: '', toolCalls: [] }

function messageItems(fields: object, path: string): readonly Item[] {
  const { role, content } = validate(Message, fields, path)
  const texts = textsOf(content, `${path}.content`)
  switch (role) {
    case 'system':
    case 'developer':
      return systemItem(texts)
    case 'user':
      return texts.map((text) => ({ kind: 'user', text }))
    case 'assistant':
      return [{ ...SILENCE, text: texts.join('') }]
    default:
      throw malformed(`${path}.role`, `must be user, assistant, system or developer, not "${role}"`)
  }
}

/** The handle counts when there is one, since clients shorten what they show. */
function thinkingOf({ summary, content, encrypted_content: handle }: z.infer<typeof Reasoning>): string {
  if (handle !== null && handle !== undefined && handle !== '') return thinkingOfHandle(handle)
  const shown = (content ?? []).length > 0 ? content : summary
  return (shown ?? []).map(({ text }) => text).join('\n\n')
}

function called(call: ToolCall): AssistantItem {
  return { ...SILENCE, toolCalls: [call] }
}

function functionCall(fields: object, path: string): ToolCall {
  const call = validate(FunctionCall, fields, path)
  return { id: call.call_id, name: calledName(call.namespace, call.name), argumentsText: call.arguments }
}

function freeformCall(fields: object, path: string): ToolCall {
  const call = validate(FreeformCall, fields, path)
  const argumentsText = freeformArguments(call.input, call.id)
  return { id: call.call_id, name: calledName(call.namespace, call.name), argumentsText }
}

function toolResult(fields: object, path: string): Item {
  const { call_id: callId, output } = validate(CallOutput, fields, path)
  const text = textsOf(output, `${path}.output`).join('\n')
  return { kind: 'tool-result', callId, name: '', text, isError: false }
}

/** One text per part; a bare string equals a list with one part. */
function textsOf(content: z.infer<typeof Content>, path: string): readonly string[] {
  if (typeof content === 'string') return [content]
  return content.map((part, i) => {
    if (part.type !== 'input_text' && part.type !== 'output_text') {
      throw unsupported(`${path}.${i}`, `content of type "${part.type}"`)
    }
    if (typeof part['text'] !== 'string') throw malformed(`${path}.${i}.text`, 'must be a string')
    return part['text']
  })
}
