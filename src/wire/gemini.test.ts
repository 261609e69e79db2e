import fc from 'fast-check'
import { expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import type { AnswerHead, AnswerPart } from './dialect.ts'
import { gemini } from './gemini.ts'
import { parseRequest } from './request.ts'
import { dialectOf, wireRoute } from './routes.ts'

const HEAD: AnswerHead = { answerId: 'a', model: 'm', createdS: 1, promptTokens: 9, includeUsage: true, tools: [] }
const USAGE = { promptTokens: 9, cachedTokens: 4, completionTokens: 3 }
const TARGET = { model: 'm', stream: false }
const user = { role: 'user', parts: [{ text: 'hi' }] }

function itemsOf(body: object): unknown {
  return parseRequest(gemini, body, TARGET).items
}

function outcome(act: () => unknown): string {
  try {
    act()
  } catch (error) {
    if (error instanceof GyreError) return `${error.code} ${error.message}`
    throw error
  }
  return 'accepted'
}

function refusal(body: unknown): string {
  return outcome(() => parseRequest(gemini, body, TARGET))
}

test('parts become items in their order, and a turn may be several contents', () => {
  const items = itemsOf({
    systemInstruction: { role: 'user', parts: [{ text: 'S' }] },
    tools: [{ functionDeclarations: [{ name: 'ls', description: 'lists', parametersJsonSchema: { type: 'object' } }] }],
    contents: [
      { parts: [{ text: 'hi' }, { text: 'there' }] },
      { role: 'model', parts: [{ text: 'T', thought: true }, { text: 'a' }] },
      {
        role: 'model',
        parts: [
          { text: 'b' },
          { functionCall: { id: 'c1', name: 'ls', args: { x: 1 } }, thoughtSignature: 'skip' },
          { functionCall: { name: 'ls' } },
          { thoughtSignature: 'only a mark' },
        ],
      },
      {
        role: 'user',
        parts: [
          { functionResponse: { id: 'c1', name: 'ls', response: { output: 'R1' } } },
          { functionResponse: { name: 'ls', response: { error: 'R2' } } },
          { functionResponse: { name: 'ls', response: { output: 'R3', exitCode: 1 } } },
          { text: 'and' },
        ],
      },
    ],
  })
  expect(items).toEqual([
    { kind: 'tools', tools: [{ name: 'ls', description: 'lists', parameters: { type: 'object' } }] },
    { kind: 'system', text: 'S' },
    { kind: 'user', text: 'hi' },
    { kind: 'user', text: 'there' },
    {
      kind: 'assistant',
      thinking: 'T',
      text: 'ab',
      toolCalls: [
        { id: 'c1', name: 'ls', argumentsText: '{"x":1}' },
        { id: '', name: 'ls', argumentsText: '{}' },
      ],
    },
    { kind: 'tool-result', callId: 'c1', name: 'ls', text: 'R1', isError: false },
    { kind: 'tool-result', callId: '', name: 'ls', text: 'R2', isError: true },
    { kind: 'tool-result', callId: '', name: 'ls', text: '{"output":"R3","exitCode":1}', isError: false },
    { kind: 'user', text: 'and' },
  ])
})

test('both spellings of a field mean the same', () => {
  const declaration = { name: 't', parameters_json_schema: { type: 'object', properties: { snake_case: {} } } }
  const snake = {
    system_instruction: { parts: [{ text: 'S' }] },
    tools: [{ function_declarations: [declaration] }],
    contents: [user, { role: 'model', parts: [{ function_call: { name: 't', args: { a_b: 1 } } }] }, user],
    generation_config: { max_output_tokens: 7, top_p: 0.5 },
  }
  const camel = {
    systemInstruction: { parts: [{ text: 'S' }] },
    tools: [{ functionDeclarations: [{ name: 't', parametersJsonSchema: declaration.parameters_json_schema }] }],
    contents: [user, { role: 'model', parts: [{ functionCall: { name: 't', args: { a_b: 1 } } }] }, user],
    generationConfig: { maxOutputTokens: 7, topP: 0.5 },
  }
  const parsed = parseRequest(gemini, snake, TARGET)
  expect(parsed).toEqual(parseRequest(gemini, camel, TARGET))
  expect(parsed).toMatchObject({ maxTokens: 7, hints: { topP: 0.5 } })
  expect(JSON.stringify(parsed.items)).toContain('snake_case')
})

test('a schema of Gemini becomes JSON Schema, and names that look like its words stay', () => {
  const parameters = {
    type: 'OBJECT',
    required: ['type'],
    properties: {
      type: { type: 'STRING', enum: ['STRING'] },
      items: { type: 'ARRAY', items: { anyOf: [{ type: 'INTEGER' }, { type: 'NULL' }] } },
    },
  }
  const tools = [{ functionDeclarations: [{ name: 't', parameters }] }]
  expect(parseRequest(gemini, { contents: [user], tools }, TARGET).tools[0]?.parameters).toEqual({
    type: 'object',
    required: ['type'],
    properties: {
      type: { type: 'string', enum: ['STRING'] },
      items: { type: 'array', items: { anyOf: [{ type: 'integer' }, { type: 'null' }] } },
    },
  })
})

const answered = { role: 'model', parts: [{ text: 'x' }] }

test.each([
  [[], 'E_WIRE_MALFORMED the request body: '],
  [{}, 'E_WIRE_MALFORMED contents: must be a list'],
  [{ contents: [] }, 'E_WIRE_MALFORMED contents: must hold at least one'],
  [{ contents: [{ parts: 'x' }] }, 'E_WIRE_MALFORMED contents.0.parts: '],
  [{ contents: [{ role: 'system', parts: [] }] }, 'E_WIRE_MALFORMED contents.0.role: '],
  [{ contents: [{ parts: [{}] }] }, 'E_WIRE_MALFORMED contents.0.parts.0: must hold one of text'],
  [
    { contents: [{ parts: [{ text: 'x', functionCall: { name: 'f' } }] }] },
    'contents.0.parts.0: must be one of text and',
  ],
  [{ contents: [{ parts: [{ functionCall: { name: 'f' } }] }] }, 'E_WIRE_MALFORMED contents.0.parts.0.functionCall: '],
  [{ contents: [user, answered] }, 'E_WIRE_MALFORMED contents: must not end'],
  [{ contents: [{ parts: [{ inlineData: { data: '' } }] }] }, 'contents.0.parts.0: content of type "inlineData"'],
  [{ contents: [{ parts: [{ text: 'x', fileData: {} }] }] }, 'E_WIRE_UNSUPPORTED contents.0.parts.0: '],
  [
    { contents: [{ parts: [{ functionResponse: { name: 'f', parts: [{ inlineData: {} }] } }] }] },
    'E_WIRE_UNSUPPORTED contents.0.parts.0.functionResponse.parts: ',
  ],
  [{ contents: [user], tools: [{ googleSearch: {} }] }, 'E_WIRE_UNSUPPORTED tools.0.googleSearch: the server tool'],
  [
    { contents: [user], toolConfig: { functionCallingConfig: { mode: 'ANY' } } },
    'E_WIRE_UNSUPPORTED toolConfig.functionCallingConfig.mode: ',
  ],
  [{ contents: [user], generationConfig: { stopSequences: ['x'] } }, 'UNSUPPORTED generationConfig.stopSequences: '],
  [{ contents: [user], generationConfig: { candidateCount: 2 } }, 'UNSUPPORTED generationConfig.candidateCount: '],
  [
    { contents: [user], generationConfig: { responseMimeType: 'application/json' } },
    'generationConfig.responseMimeType: ',
  ],
  [{ contents: [user], generationConfig: { responseModalities: ['AUDIO'] } }, 'generationConfig.responseModalities: '],
  [{ contents: [user], cachedContent: 'cachedContents/1' }, 'E_WIRE_UNSUPPORTED cachedContent: '],
  [
    {
      contents: [user],
      toolConfig: { functionCallingConfig: { mode: 'AUTO' } },
      generationConfig: {
        thinkingConfig: { includeThoughts: true },
        stopSequences: [],
        responseMimeType: 'text/plain',
      },
      safetySettings: [],
    },
    'accepted',
  ],
])('%j is judged by name and place', (body, expected) => {
  expect(refusal(body)).toContain(expected)
})

test('any JSON is parsed or refused with a typed error', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      // A thrown error that is not ours would end the test.
      expect(refusal(value)).toMatch(/^E_WIRE/)
      refusal({ contents: value, tools: value, systemInstruction: value })
      refusal({ contents: [{ parts: value }, user], generationConfig: value, toolConfig: value })
      refusal({ contents: [{ parts: [{ functionResponse: { name: 'f', response: value } }] }], tools: [value] })
    }),
  )
})

const part = fc.oneof(
  fc.record({ kind: fc.constantFrom('text' as const, 'thinking' as const), text: fc.string({ minLength: 1 }) }),
  fc.record({
    kind: fc.constant('tool-call' as const),
    call: fc.record({
      id: fc.string(),
      name: fc.string(),
      argumentsText: fc.jsonValue().map((v) => JSON.stringify({ v })),
    }),
  }),
) as fc.Arbitrary<AnswerPart>

interface Body {
  candidates: {
    content: { parts: { text?: string; thought?: boolean; functionCall?: object }[] }
    finishReason?: string
  }[]
  usageMetadata?: Record<string, number>
}

function bodiesOf(stream: string): Body[] {
  const frames = stream.split('\n\n').filter((frame) => frame !== '')
  return frames.map((frame) => JSON.parse(frame.slice('data: '.length)) as Body)
}

/** What clients keep: empty texts are nothing, and texts of one kind in a row are one. */
function kept(bodies: readonly Body[]): object[] {
  const parts: Body['candidates'][number]['content']['parts'] = []
  for (const next of bodies.flatMap((body) => body.candidates[0]?.content.parts ?? [])) {
    const last = parts.at(-1)
    if (next.text === '') continue
    if (last?.text !== undefined && next.text !== undefined && last.thought === next.thought) last.text += next.text
    else parts.push({ ...next })
  }
  return parts
}

test('a stream of any parts adds up to the body that is not streamed', () => {
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const stream = gemini.answerStream(HEAD)
      const text = [stream.open(), ...parts.flatMap((p) => [stream.part(p), stream.keepAlive()])].join('')
      const bodies = bodiesOf(text + stream.close('length', USAGE))
      const whole = gemini.answerBody(HEAD, parts, 'length', USAGE) as unknown as Body
      expect(kept(bodies)).toEqual(kept([whole]))
      expect(bodies.at(-1)).toMatchObject({ candidates: [{ finishReason: 'MAX_TOKENS' }] })
      expect(bodies.at(-1)?.usageMetadata).toEqual(whole.usageMetadata)
      // A content without parts makes Google's client drop the turn.
      expect([...bodies, whole].every((body) => (body.candidates[0]?.content.parts.length ?? 0) > 0)).toBe(true)
    }),
  )
})

function served(path: string, query = ''): string {
  const route = wireRoute(path, {}, query)
  return route === undefined ? 'nothing' : `${route.dialect.name} ${route.verb} ${JSON.stringify(route.target)}`
}

test.each([
  ['/v1beta/models/g-2.5:generateContent', '', 'gemini generate {"model":"g-2.5","stream":false}'],
  ['/v1/models/a%2Fb:x:generateContent', '', 'gemini generate {"model":"a/b:x","stream":false}'],
  ['/v1beta/models/g:streamGenerateContent', 'key=k&alt=sse', 'gemini generate {"model":"g","stream":true}'],
  ['/v1beta/models/g:countTokens', '', 'gemini count-tokens {"model":"g"}'],
  ['/v1beta/models', '', 'gemini list-models {}'],
  ['/v1beta/models/g', '', 'gemini list-models {"model":"g"}'],
  ['/v1/models/g', '', 'nothing'],
  ['/v1beta/models/g:embedContent', '', 'nothing'],
  ['/v1beta/models/', '', 'nothing'],
  ['/v1beta/models/%E0%A4%A:countTokens', '', 'gemini count-tokens {"model":"%E0%A4%A"}'],
])('%s?%s is %s', (path, query, expected) => {
  expect(served(path, query)).toBe(expected)
})

test('a stream that is one JSON list is refused with the way out', () => {
  const refused = outcome(() => wireRoute('/v1beta/models/g:streamGenerateContent', {}, ''))
  expect(refused).toMatch(/^E_WIRE_UNSUPPORTED .*\?alt=sse/)
})

test.each([
  ['/x/1/v1beta/models/g:generateContent', {}, 'gemini'],
  ['/x/1/v1/models/g:countTokens', {}, 'gemini'],
  ['/x/1/v1/models', { 'x-goog-api-key': 'k' }, 'gemini'],
  ['/x/1/v1/messages', { 'x-goog-api-key': 'k' }, 'anthropic'],
  ['/x/1/v1/models', { 'anthropic-version': '1' }, 'anthropic'],
  ['/nowhere', {}, 'openai-chat'],
])('an error at %s with %j is phrased as %s', (path, headers, name) => {
  expect(dialectOf(path, headers).name).toBe(name)
})
