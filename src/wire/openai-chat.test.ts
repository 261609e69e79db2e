import fc from 'fast-check'
import { expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import type { AnswerHead, AnswerPart } from './dialect.ts'
import { openAiChat } from './openai-chat.ts'
import { parseRequest } from './request.ts'

const HEAD: AnswerHead = { answerId: 'a', model: 'm', createdS: 1, promptTokens: 9, includeUsage: true, tools: [] }
const USAGE = { promptTokens: 9, cachedTokens: 4, completionTokens: 3 }
const user = { role: 'user', content: 'hi' }

function itemsOf(body: unknown): unknown {
  return parseRequest(openAiChat, body).items
}

function refusal(body: unknown): string {
  try {
    parseRequest(openAiChat, body)
  } catch (error) {
    if (error instanceof GyreError) return `${error.code} ${error.message}`
    throw error
  }
  return 'accepted'
}

test('tools come first, then system, then the conversation as it was sent', () => {
  const tool = { type: 'function', function: { name: 'bash', description: 'runs', parameters: { type: 'object' } } }
  const call = { id: 'c1', type: 'function', function: { name: 'bash', arguments: '{ "a" : 1 }' } }
  const body = {
    model: 'm',
    tools: [tool],
    max_completion_tokens: 7,
    messages: [
      { role: 'system', content: 'S' },
      user,
      { role: 'assistant', content: null, reasoning_content: 'T', tool_calls: [call] },
      { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'R' }] },
      { role: 'developer', content: 'later' },
      user,
    ],
  }
  const parsed = parseRequest(openAiChat, body)
  expect(parsed).toMatchObject({ model: 'm', stream: false, maxTokens: 7, includeUsage: false })
  expect(parsed.items).toEqual([
    { kind: 'tools', tools: [{ name: 'bash', description: 'runs', parameters: { type: 'object' } }] },
    { kind: 'system', text: 'S' },
    { kind: 'user', text: 'hi' },
    {
      kind: 'assistant',
      thinking: 'T',
      text: '',
      toolCalls: [{ id: 'c1', name: 'bash', argumentsText: '{ "a" : 1 }' }],
    },
    { kind: 'tool-result', callId: 'c1', name: '', text: 'R', isError: false },
    { kind: 'system', text: 'later' },
    { kind: 'user', text: 'hi' },
  ])
})

test('a string equals a list with one text part, and null equals an empty string', () => {
  expect(itemsOf({ messages: [{ role: 'user', content: [{ type: 'text', text: 'hi' }] }] })).toEqual(
    itemsOf({ messages: [user] }),
  )
  const assistant = (content: unknown): unknown => itemsOf({ messages: [user, { role: 'assistant', content }, user] })
  expect(assistant(null)).toEqual(assistant(''))
  expect(itemsOf({ messages: [user], tools: [] })).toEqual(itemsOf({ messages: [user] }))
})

test.each([
  ['not an object', 'E_WIRE_MALFORMED the request body: '],
  [{}, 'E_WIRE_MALFORMED messages: '],
  [{ messages: [] }, 'E_WIRE_MALFORMED messages: '],
  [{ messages: [{ role: 'user', content: 5 }] }, 'E_WIRE_MALFORMED messages.0.content: must be a string or a list'],
  [{ messages: [user, { role: 'assistant', content: 'x' }] }, 'E_WIRE_MALFORMED messages: must not end'],
  [
    { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
    'E_WIRE_UNSUPPORTED messages.0.content.0: content of type "image_url"',
  ],
  [{ messages: [{ role: 'function', content: 'x' }] }, 'E_WIRE_UNSUPPORTED messages.0: a message of role "function"'],
  [{ messages: [user], tools: [{ type: 'custom' }] }, 'E_WIRE_UNSUPPORTED tools.0: a tool of type "custom"'],
  [{ messages: [user], n: 2 }, 'E_WIRE_UNSUPPORTED n: '],
  [{ messages: [user], stop: ['x'] }, 'E_WIRE_UNSUPPORTED stop: '],
  [{ messages: [user], max_tokens: 0 }, 'E_WIRE_MALFORMED max_tokens: '],
  [{ messages: [user], stop: [], n: 1, logprobs: false, temperature: 0.5, seed: 3, store: true }, 'accepted'],
])('%j is judged by name and place', (body, expected) => {
  expect(refusal(body)).toContain(expected)
})

test('any JSON is parsed or refused with a typed error', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      // A thrown error that is not ours would end the test.
      expect(refusal(value)).toMatch(/^E_WIRE/)
      refusal({ messages: value, tools: value })
      refusal({ messages: [{ role: 'user', content: value }, user] })
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

interface Delta {
  content?: string
  reasoning_content?: string
  tool_calls?: object[]
}

test('a stream of any parts adds up to the body that is not streamed', () => {
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const stream = openAiChat.answerStream(HEAD)
      const text = [stream.open(), ...parts.flatMap((p) => [stream.part(p), stream.keepAlive()])].join('')
      const events = (text + stream.close('stop', USAGE)).split('\n\n').filter((frame) => frame !== '')
      expect(events.at(-1)).toBe('data: [DONE]')
      const chunks = events
        .slice(0, -1)
        .map((e) => JSON.parse(e.slice(6)) as { choices: { delta: Delta }[]; usage?: object })
      const deltas = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta))
      const content = deltas.map((delta) => delta.content ?? '').join('')
      const calls = deltas.flatMap((delta) => delta.tool_calls ?? []).map((call) => ({ ...call, index: undefined }))
      const reasoning = deltas.map((delta) => delta.reasoning_content ?? '').join('')
      const body = openAiChat.answerBody(HEAD, parts, 'stop', USAGE) as unknown as {
        choices: { message: { content: string | null; tool_calls?: object[]; reasoning_content?: string } }[]
        usage: object
      }
      const message = body.choices[0]?.message
      expect(message?.content ?? '').toBe(content)
      expect(message?.tool_calls ?? []).toEqual(calls)
      expect(message?.reasoning_content ?? '').toBe(reasoning)
      expect(chunks.at(-1)?.usage).toEqual(body.usage)
    }),
  )
})

test('a full context has the code that clients compact on', () => {
  const fault = { kind: 'overlong', code: 'E_ENGINE_OVERLONG', message: 'too long' } as const
  expect(openAiChat.faultBody(fault)).toEqual({
    error: { message: 'too long', type: 'invalid_request_error', param: null, code: 'context_length_exceeded' },
  })
})
