/** @file A body of Gemini's `generateContent` as canonical items. */
import { z } from 'zod'
import type { AssistantItem, Item, Json, ToolCall, ToolSpec } from '../core/items.ts'
import { systemItem } from './canonical.ts'
import type { Envelope, RequestTarget } from './dialect.ts'
import { lowerCaseTypes } from './gemini-schema.ts'
import { malformed, shallowJson, unsupported, validate } from './validate.ts'

const Fields = z.looseObject({})
const Content = z.looseObject({ role: z.string().nullish(), parts: z.array(Fields).nullish() })

const Body = z.looseObject({
  model: z.string().nullish(),
  systemInstruction: z.union([z.string(), Content], { error: 'must be a string or a content' }).nullish(),
  tools: z.array(Fields).nullish(),
  toolConfig: z
    .looseObject({ functionCallingConfig: z.looseObject({ mode: z.string().nullish() }).nullish() })
    .nullish(),
  generationConfig: Fields.nullish(),
  cachedContent: z.string().nullish(),
})

const Config = z.looseObject({
  maxOutputTokens: z.number().int().positive().nullish(),
  temperature: z.number().nullish(),
  topP: z.number().nullish(),
  stopSequences: z.array(z.string()).nullish(),
  candidateCount: z.number().int().nullish(),
  responseMimeType: z.string().nullish(),
  responseSchema: z.unknown().optional(),
  responseJsonSchema: z.unknown().optional(),
  responseModalities: z.array(z.string()).nullish(),
  responseLogprobs: z.boolean().nullish(),
})

const Declaration = z.looseObject({
  name: z.string().min(1),
  description: z.string().nullish(),
  parameters: z.looseObject({}).nullish(),
  parametersJsonSchema: z.looseObject({}).nullish(),
})

const Part = z.looseObject({
  text: z.string().nullish(),
  thought: z.boolean().nullish(),
  functionCall: Fields.nullish(),
  functionResponse: Fields.nullish(),
})
const FunctionCall = z.looseObject({
  id: z.string().nullish(),
  name: z.string().min(1),
  args: z.looseObject({}).nullish(),
})
const FunctionResponse = z.looseObject({
  id: z.string().nullish(),
  name: z.string().min(1),
  response: z.looseObject({}).nullish(),
  parts: z.array(z.unknown()).nullish(),
})

type AnyFields = Readonly<Record<string, unknown>>
type AnyPart = z.infer<typeof Part>

/** One of these is what a part is; the marks say something about it that the policy never sees. */
const PART_KINDS = ['text', 'functionCall', 'functionResponse'] as const
const PART_MARKS: ReadonlySet<string> = new Set(['thought', 'thoughtSignature', 'partMetadata'])

/** @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED. */
export function parseGeminiEnvelope(body: unknown, target: RequestTarget): Envelope {
  const request = validate(Body, camelKeys(body), '')
  const config = validate(Config, camelKeys(request.generationConfig ?? {}), 'generationConfig')
  refuseOptions(request, config)
  return {
    model: target.model ?? request.model ?? '',
    tools: (request.tools ?? []).flatMap((tool, i) => toolSpecs(tool, `tools.${i}`)),
    deferredTools: new Map(),
    system: systemItem(systemTexts(request.systemInstruction ?? '')),
    stream: target.stream ?? false,
    maxTokens: config.maxOutputTokens ?? undefined,
    includeUsage: true,
    hints: { temperature: config.temperature ?? undefined, topP: config.topP ?? undefined },
  }
}

/** A body of `countTokens` holds the conversation, or the whole request that would be sent. */
export function geminiCountedRequest(body: unknown): unknown {
  const { generateContentRequest: whole } = validate(Fields, camelKeys(body), '')
  return whole ?? body
}

function refuseOptions(request: z.infer<typeof Body>, config: z.infer<typeof Config>): void {
  if ((request.cachedContent ?? '') !== '') throw unsupported('cachedContent', 'a prompt that is kept elsewhere')
  const mode = request.toolConfig?.functionCallingConfig?.mode ?? 'AUTO'
  if (mode !== 'AUTO' && mode !== 'MODE_UNSPECIFIED') {
    throw unsupported('toolConfig.functionCallingConfig.mode', `the mode "${mode}" of function calling`)
  }
  for (const [field, isServed, what] of OPTIONS) {
    if (!isServed(config)) throw unsupported(`generationConfig.${field}`, what)
  }
}

type ConfigField = keyof z.infer<typeof Config>

const OPTIONS: readonly (readonly [ConfigField, (config: z.infer<typeof Config>) => boolean, string])[] = [
  ['stopSequences', ({ stopSequences }) => (stopSequences ?? []).length === 0, 'a stop text'],
  ['candidateCount', ({ candidateCount }) => (candidateCount ?? 1) === 1, 'another number of answers than 1'],
  ['responseMimeType', ({ responseMimeType: type }) => (type ?? '') === '' || type === 'text/plain', 'JSON output'],
  ['responseSchema', ({ responseSchema }) => (responseSchema ?? undefined) === undefined, 'a schema of the answer'],
  ['responseJsonSchema', (config) => (config.responseJsonSchema ?? undefined) === undefined, 'a schema of the answer'],
  [
    'responseModalities',
    ({ responseModalities }) => (responseModalities ?? []).every((modality) => modality.toUpperCase() === 'TEXT'),
    'output other than text',
  ],
  ['responseLogprobs', ({ responseLogprobs }) => responseLogprobs !== true, 'asking for log-probs'],
]

/** One element of `contents`. */
export function parseGeminiContent(element: unknown, path: string): readonly Item[] {
  const content = validate(Content, element, path)
  const parts = (content.parts ?? []).map((part, i) => checkedPart(part, `${path}.parts.${i}`))
  switch (content.role ?? 'user') {
    case 'model':
      return [assistantItem(parts, path)]
    case 'user':
    case 'function':
      return parts.flatMap((part, i) => userItems(part, `${path}.parts.${i}`))
    default:
      throw malformed(`${path}.role`, `must be user or model, not "${String(content.role)}"`)
  }
}

function checkedPart(value: AnyFields, path: string): AnyPart {
  const part = validate(Part, camelKeys(value), path)
  const given = Object.keys(part).filter((key) => part[key] !== null && part[key] !== undefined)
  const kinds = PART_KINDS.filter((kind) => given.includes(kind))
  const other = given.find((key) => !PART_MARKS.has(key) && !(kinds as readonly string[]).includes(key))
  if (other !== undefined) throw unsupported(path, `content of type "${other}"`)
  if (kinds.length > 1) throw malformed(path, `must be one of ${kinds.join(' and ')}`)
  if (given.length === 0) throw malformed(path, `must hold one of ${PART_KINDS.join(', ')}`)
  return part
}

function userItems(part: AnyPart, path: string): readonly Item[] {
  if (part.functionCall)
    throw malformed(`${path}.functionCall`, 'stands in a content of role "user": only a model calls')
  if (part.functionResponse) return [toolResult(part.functionResponse, `${path}.functionResponse`)]
  return typeof part.text === 'string' ? [{ kind: 'user', text: part.text }] : []
}

function assistantItem(parts: readonly AnyPart[], path: string): AssistantItem {
  let [thinking, text] = ['', '']
  const toolCalls: ToolCall[] = []
  parts.forEach((part, i) => {
    const at = `${path}.parts.${i}`
    if (part.functionResponse) throw malformed(`${at}.functionResponse`, 'stands in a content of role "model"')
    if (part.functionCall) toolCalls.push(toolCall(part.functionCall, `${at}.functionCall`))
    else if (part.thought === true) thinking += part.text ?? ''
    else text += part.text ?? ''
  })
  return { kind: 'assistant', thinking, text, toolCalls }
}

function toolCall(value: AnyFields, path: string): ToolCall {
  const { id, name, args } = validate(FunctionCall, value, path)
  return { id: id ?? '', name, argumentsText: JSON.stringify(shallowJson(args ?? {}, `${path}.args`)) }
}

function toolResult(value: AnyFields, path: string): Item {
  const result = validate(FunctionResponse, value, path)
  if ((result.parts ?? []).length > 0) throw unsupported(`${path}.parts`, 'a result other than text')
  const { text, isError } = resultText(shallowJson(result.response ?? {}, `${path}.response`))
  return { kind: 'tool-result', callId: result.id ?? '', name: result.name, text, isError }
}

/** A result that is one text in an envelope is that text; anything else is what JSON makes of it. */
function resultText(response: Json): { readonly text: string; readonly isError: boolean } {
  const entries = Object.entries(response ?? {}) as readonly (readonly [string, Json])[]
  const [key, value] = entries[0] ?? ['', '']
  if (entries.length === 1 && typeof value === 'string' && ['output', 'result', 'error'].includes(key)) {
    return { text: value, isError: key === 'error' }
  }
  return { text: JSON.stringify(response), isError: false }
}

function systemTexts(instruction: string | z.infer<typeof Content>): readonly string[] {
  if (typeof instruction === 'string') return [instruction]
  return (instruction.parts ?? []).map((value, i) => {
    const path = `systemInstruction.parts.${i}`
    const part = checkedPart(value, path)
    if (part.functionCall || part.functionResponse) throw malformed(path, 'must be text')
    return part.text ?? ''
  })
}

function toolSpecs(value: AnyFields, path: string): readonly ToolSpec[] {
  const tool = camelKeys(value) as AnyFields
  const other = Object.keys(tool).find(
    (key) => key !== 'functionDeclarations' && (tool[key] ?? undefined) !== undefined,
  )
  if (other !== undefined) throw unsupported(`${path}.${other}`, `the server tool "${other}"`)
  const at = `${path}.functionDeclarations`
  return validate(z.array(Fields), tool['functionDeclarations'] ?? [], at).map((entry, i) =>
    toolSpec(entry, `${at}.${i}`),
  )
}

function toolSpec(entry: AnyFields, path: string): ToolSpec {
  const tool = validate(Declaration, camelKeys(entry), path)
  return { name: tool.name, description: tool.description ?? '', parameters: parametersOf(tool, path) }
}

function parametersOf(tool: z.infer<typeof Declaration>, path: string): Json {
  const { parameters, parametersJsonSchema: schema } = tool
  if (parameters && schema) throw malformed(path, 'must not hold both parameters and parametersJsonSchema')
  if (parameters) return lowerCaseTypes(shallowJson(parameters, `${path}.parameters`))
  return shallowJson(schema ?? { type: 'object', properties: {} }, `${path}.parametersJsonSchema`)
}

/** Google takes every field in both spellings, `systemInstruction` and `system_instruction`. */
function camelKeys(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  const entries = Object.entries(value).map(([key, inner]): [string, unknown] => [camelKey(key), inner])
  return Object.fromEntries(entries)
}

function camelKey(key: string): string {
  return key.replace(/(?<=[a-z])_([a-z])/g, (_, letter: string) => letter.toUpperCase())
}
