import fc from 'fast-check'
import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator'
import type { Response, ResponseStreamEvent } from 'openai/resources/responses/responses'
import { expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import type { FinishReason, Json, ToolCall, ToolSpec } from '../core/items.ts'
import type { AnswerHead, AnswerPart, FaultKind } from './dialect.ts'
import { thinkingHandle } from './openai-responses-echo.ts'
import { openAiResponses } from './openai-responses.ts'
import { parseRequest } from './request.ts'

const USAGE = { promptTokens: 9, cachedTokens: 4, completionTokens: 3 }
const user = { role: 'user', content: 'hi' }
const NO_ARGUMENTS = { type: 'object', properties: {} }
const TOOLS: readonly ToolSpec[] = [
  { name: 'run', description: '', parameters: NO_ARGUMENTS },
  { name: 'team.ask', description: '', parameters: NO_ARGUMENTS, namespace: 'team' },
  { name: 'patch', description: '', parameters: NO_ARGUMENTS, isFreeform: true },
]
const HEAD: AnswerHead = { answerId: 'a', model: 'm', createdS: 1, promptTokens: 9, includeUsage: true, tools: TOOLS }

function itemsOf(...input: readonly unknown[]): unknown {
  return parseRequest(openAiResponses, { input: [...input, user] }).items.slice(0, -1)
}

function refusal(body: unknown): string {
  try {
    parseRequest(openAiResponses, body)
  } catch (error) {
    if (error instanceof GyreError) return `${error.code} ${error.message}`
    throw error
  }
  return 'accepted'
}

function answer(parts: readonly AnswerPart[]): Response {
  return openAiResponses.answerBody(HEAD, parts, 'stop', USAGE) as unknown as Response
}

/** The events of a stream, with a sign of life after each part. */
function eventsOf(
  parts: readonly AnswerPart[],
  head = HEAD,
  finishReason: FinishReason = 'stop',
): ResponseStreamEvent[] {
  const stream = openAiResponses.answerStream(head)
  const text = [stream.open(), ...parts.flatMap((part) => [stream.part(part), stream.keepAlive()])].join('')
  const frames = (text + stream.close(finishReason, USAGE)).split('\n\n').filter((frame) => frame !== '')
  return frames.map((frame) => {
    const [, name, data] = /^event: (.+)\ndata: (.+)$/.exec(frame) ?? []
    const event = JSON.parse(data ?? '') as ResponseStreamEvent
    expect(event.type).toBe(name)
    return event
  })
}

const call = (name: string, argumentsText: string): AnswerPart => ({
  kind: 'tool-call',
  call: { id: 'c1', name, argumentsText },
})

test('tools come first, then instructions, then the items as they were sent, each turn as one', () => {
  const body = {
    input: [
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'D' }] },
      {
        role: 'user',
        content: [
          { type: 'input_text', text: 'a' },
          { type: 'input_text', text: 'b' },
        ],
      },
      { type: 'reasoning', id: 'rs', summary: [], content: null, encrypted_content: thinkingHandle('Tü') },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'says' }] },
      { type: 'function_call', call_id: 'c1', name: 'run', arguments: '{ "a" : ' },
      { type: 'function_call', call_id: 'c2', name: 'ask', namespace: 'team', arguments: '{}' },
      { type: 'custom_tool_call', call_id: 'c3', name: 'patch', input: '*** "x"\n' },
      { type: 'function_call_output', call_id: 'c1', output: 'R' },
      { type: 'function_call_output', call_id: 'c2', output: [{ type: 'input_text', text: 'S' }] },
      { type: 'custom_tool_call_output', call_id: 'c3', output: 'T' },
    ],
    model: 'm',
    instructions: 'I',
    tools: [{ type: 'function', name: 'run', description: 'runs', parameters: { type: 'object' } }],
    max_output_tokens: 7,
  }
  const parsed = parseRequest(openAiResponses, body)
  expect(parsed).toMatchObject({ model: 'm', stream: false, maxTokens: 7 })
  expect(parsed.items).toEqual([
    { kind: 'tools', tools: [{ name: 'run', description: 'runs', parameters: { type: 'object' } }] },
    { kind: 'system', text: 'I' },
    { kind: 'system', text: 'D' },
    { kind: 'user', text: 'a' },
    { kind: 'user', text: 'b' },
    {
      kind: 'assistant',
      thinking: 'Tü',
      text: 'says',
      toolCalls: [
        { id: 'c1', name: 'run', argumentsText: '{ "a" : ' },
        { id: 'c2', name: 'team.ask', argumentsText: '{}' },
        { id: 'c3', name: 'patch', argumentsText: '{"input":"*** \\"x\\"\\n"}' },
      ],
    },
    { kind: 'tool-result', callId: 'c1', name: '', text: 'R', isError: false },
    { kind: 'tool-result', callId: 'c2', name: '', text: 'S', isError: false },
    { kind: 'tool-result', callId: 'c3', name: '', text: 'T', isError: false },
  ])
})

test('an input of one text is one user message', () => {
  expect(parseRequest(openAiResponses, { input: 'hi' }).items).toEqual([{ kind: 'user', text: 'hi' }])
})

test('tools of a namespace carry its name, freeform tools take one text, and tools of the server are left out', () => {
  const run = { type: 'function', name: 'run' }
  const format = { type: 'grammar', syntax: 'lark', definition: 'start: "x"' }
  const { tools } = parseRequest(openAiResponses, {
    input: 'hi',
    tools: [
      { type: 'namespace', name: 'team', description: 'Others.', tools: [{ ...run, description: 'Asks.' }, run] },
      { type: 'web_search', external_web_access: true },
      { type: 'custom', name: 'patch', description: 'Patches.', format },
      { type: 'image_generation' },
    ],
  })
  const one = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] }
  expect(tools).toEqual([
    { name: 'team.run', description: 'Others.\n\nAsks.', parameters: NO_ARGUMENTS, namespace: 'team' },
    { name: 'team.run', description: '', parameters: NO_ARGUMENTS, namespace: 'team' },
    {
      name: 'patch',
      description: 'Patches.\n\nThe input must follow this lark grammar:\nstart: "x"',
      parameters: one,
      isFreeform: true,
    },
  ])
})

function thinking(item: object): unknown {
  return (itemsOf({ type: 'reasoning', ...item }) as unknown[])[0]
}

test('thinking comes from the handle, else from what is shown; a foreign handle has none', () => {
  const shown = [{ type: 'summary_text', text: 'shown' }]
  expect(thinking({ summary: shown, encrypted_content: thinkingHandle('whole') })).toMatchObject({ thinking: 'whole' })
  expect(thinking({ summary: shown, encrypted_content: 'gAAAAABf' })).toMatchObject({ thinking: '' })
  expect(thinking({ summary: shown, encrypted_content: null })).toMatchObject({ thinking: 'shown' })
  expect(thinking({ summary: [], content: [{ type: 'reasoning_text', text: 'raw' }] })).toMatchObject({
    thinking: 'raw',
  })
  expect(thinking({})).toMatchObject({ thinking: '' })
})

test.each([
  ['not an object', 'E_WIRE_MALFORMED the request body: '],
  [{}, 'E_WIRE_MALFORMED input: must be a list'],
  [{ input: [] }, 'E_WIRE_MALFORMED input: '],
  [{ input: [user, { type: 'function_call', call_id: 'c', name: 'x', arguments: '{}' }] }, 'input: must not end'],
  [{ input: [{ role: 'user', content: 5 }] }, 'E_WIRE_MALFORMED input.0.content: must be a string or a list'],
  [{ input: [{ role: 'tool', content: 'x' }] }, 'E_WIRE_MALFORMED input.0.role: '],
  [{ input: [{ type: 'function_call', name: 'x', arguments: '{}' }, user] }, 'E_WIRE_MALFORMED input.0.call_id: '],
  [
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
    'E_WIRE_UNSUPPORTED input.0.content.0: content of type "input_image"',
  ],
  [
    { input: [{ type: 'function_call_output', call_id: 'c', output: [{ type: 'input_file' }] }] },
    'E_WIRE_UNSUPPORTED input.0.output.0: content of type "input_file"',
  ],
  [{ input: [{ type: 'item_reference', id: 'x' }] }, 'E_WIRE_UNSUPPORTED input.0: an input item of type "item_ref'],
  [{ input: 'x', tools: [{ type: 'file_search' }] }, 'E_WIRE_UNSUPPORTED tools.0: a tool of type "file_search"'],
  [
    { input: 'x', tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'mcp' }] }] },
    'E_WIRE_UNSUPPORTED tools.0.tools.0: a tool of type "mcp"',
  ],
  [{ input: 'x', tools: [{ type: 'function', name: 'f', defer_loading: true }] }, 'tools.0.defer_loading: '],
  [{ input: 'x', tools: [{ type: 'function', name: 'f' }], tool_choice: 'required' }, 'E_WIRE_UNSUPPORTED tool_choice'],
  [{ input: 'x', previous_response_id: 'resp_1' }, 'E_WIRE_UNSUPPORTED previous_response_id: '],
  [{ input: 'x', conversation: { id: 'c' } }, 'E_WIRE_UNSUPPORTED conversation: '],
  [{ input: 'x', prompt: { id: 'c' } }, 'E_WIRE_UNSUPPORTED prompt: '],
  [{ input: 'x', background: true }, 'E_WIRE_UNSUPPORTED background: '],
  [{ input: 'x', text: { format: { type: 'json_schema' } } }, 'E_WIRE_UNSUPPORTED text.format: '],
  [{ input: 'x', include: ['message.output_text.logprobs'] }, 'E_WIRE_UNSUPPORTED include: '],
  [{ input: 'x', max_output_tokens: 0 }, 'E_WIRE_MALFORMED max_output_tokens: '],
  [
    {
      input: 'x',
      store: true,
      tool_choice: 'none',
      parallel_tool_calls: false,
      previous_response_id: null,
      include: ['reasoning.encrypted_content'],
      reasoning: { summary: 'auto' },
      text: { format: { type: 'text' }, verbosity: 'low' },
      prompt_cache_key: 'k',
      client_metadata: {},
    },
    'accepted',
  ],
])('%j is judged by name and place', (body, expected) => {
  expect(refusal(body)).toContain(expected)
})

test('any JSON is parsed or refused with a typed error', () => {
  const type = fc.constantFrom('message', 'reasoning', 'function_call', 'custom_tool_call', 'function_call_output')
  fc.assert(
    fc.property(fc.jsonValue(), type, (value, kind) => {
      // A thrown error that is not ours would end the test.
      expect(refusal(value)).toMatch(/^E_WIRE/)
      refusal({ input: value, tools: value, text: value, include: value, tool_choice: value })
      refusal({ input: [{ type: kind, role: 'user', content: value, output: value, summary: value }, user] })
      refusal({ input: [{ type: kind, call_id: 'c', name: 'n', arguments: value, input: value }, user] })
    }),
  )
})

const argumentsText = fc.oneof(
  fc.string().map((input) => JSON.stringify({ input })),
  fc.dictionary(fc.string(), fc.jsonValue()).map((value) => JSON.stringify(value)),
)
const part = fc.oneof(
  fc.record({ kind: fc.constantFrom('text' as const, 'thinking' as const), text: fc.string({ minLength: 1 }) }),
  fc.record({
    kind: fc.constant('tool-call' as const),
    call: fc.record({
      id: fc.string({ minLength: 1 }),
      name: fc.constantFrom('run', 'team.ask', 'patch', 'unknown', 'team.none'),
      argumentsText,
    }),
  }),
) as fc.Arbitrary<AnswerPart>

function accumulated(events: readonly ResponseStreamEvent[]): Response | undefined {
  let snapshot: Response | undefined
  // Without the last event, which holds the whole: what the client made of the pieces.
  for (const event of events.slice(0, -1)) snapshot = accumulateResponse(event, snapshot)
  return snapshot
}

test('a stream of any parts adds up to the body that is not streamed, piece by piece and at its end', () => {
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const events = eventsOf(parts)
      expect(events.map((event) => (event as { sequence_number: number }).sequence_number)).toEqual(
        events.map((_, i) => i),
      )
      const whole = answer(parts)
      expect(accumulated(events)?.output).toEqual(whole.output)
      expect(events.at(-1)).toMatchObject({ type: 'response.completed', response: whole })
    }),
  )
})

test('however a text is cut, the response is the same', () => {
  const texts = fc.array(fc.string({ minLength: 1 }), { minLength: 1 })
  fc.assert(
    fc.property(texts, texts, (thoughts, words) => {
      const cut: AnswerPart[] = [
        ...thoughts.map((text) => ({ kind: 'thinking' as const, text })),
        ...words.map((text) => ({ kind: 'text' as const, text })),
        call('run', '{}'),
      ]
      const joined: AnswerPart[] = [
        { kind: 'thinking', text: thoughts.join('') },
        { kind: 'text', text: words.join('') },
        call('run', '{}'),
      ]
      expect(accumulated(eventsOf(cut))?.output).toEqual(answer(joined).output)
    }),
  )
})

test('the echo of an answer is the turn that was generated', () => {
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const joined = (kind: string): string => parts.map((p) => (p.kind === kind && 'text' in p ? p.text : '')).join('')
      const [turn] = (itemsOf(user, ...answer(parts).output) as unknown[]).slice(1) as { toolCalls: ToolCall[] }[]
      expect(turn).toMatchObject({ kind: 'assistant', text: joined('text'), thinking: joined('thinking') })
      const calls = parts.flatMap((p) => (p.kind === 'tool-call' ? [p.call] : []))
      expect(turn?.toolCalls.map(({ id, name }) => ({ id, name }))).toEqual(calls.map(({ id, name }) => ({ id, name })))
      turn?.toolCalls.forEach((echo, i) => {
        const served = JSON.parse(calls[i]?.argumentsText ?? '') as Record<string, Json>
        const isFree = echo.name === 'patch' && typeof served['input'] === 'string'
        expect(JSON.parse(echo.argumentsText)).toEqual(isFree ? { input: served['input'] } : served)
      })
    }),
  )
})

function calledItem(name: string, text: string): unknown {
  return answer([call(name, text)]).output[0]
}

test('a call goes out as what the tool is', () => {
  expect(calledItem('run', '{ "a" :1}')).toEqual({
    id: 'fc_a_0',
    type: 'function_call',
    call_id: 'c1',
    name: 'run',
    arguments: '{ "a" :1}',
    status: 'completed',
  })
  expect(calledItem('team.ask', '{}')).toMatchObject({ type: 'function_call', namespace: 'team', name: 'ask' })
  expect(calledItem('team.none', '{}')).toMatchObject({ type: 'function_call', name: 'team.none' })
  expect(calledItem('patch', '{"input":"a\\nb"}')).toMatchObject({
    type: 'custom_tool_call',
    name: 'patch',
    input: 'a\nb',
  })
  expect(calledItem('patch', '{"diff":"a"}')).toMatchObject({ type: 'custom_tool_call', input: '{"diff":"a"}' })
})

test('an answer that was cut says so, and one that says nothing is an empty message', () => {
  const cut: AnswerPart[] = [{ kind: 'text', text: 'so fa' }]
  const last = eventsOf(cut, { ...HEAD, maxTokens: 3 }, 'length').at(-1)
  expect(last).toMatchObject({
    type: 'response.incomplete',
    response: {
      max_output_tokens: 3,
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      output: [{ type: 'message', status: 'incomplete' }],
      usage: { input_tokens: 9, input_tokens_details: { cached_tokens: 4 }, output_tokens: 3, total_tokens: 12 },
    },
  })
  // The bound was ours: the client's own has to be there for the event that clients fail at.
  expect(eventsOf(cut, HEAD, 'length').at(-1)).toMatchObject({
    type: 'response.completed',
    response: { status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } },
  })
  expect(answer([]).output).toMatchObject([{ type: 'message', content: [{ type: 'output_text', text: '' }] }])
  expect(accumulated(eventsOf([]))?.output).toEqual(answer([]).output)
})

function failed(kind: FaultKind): string {
  return openAiResponses.answerStream(HEAD).fail({ kind, code: 'E_X', message: 'no' })
}

test('a failed stream ends with a code that clients know', () => {
  expect(failed('overlong')).toContain('"error":{"code":"context_length_exceeded","message":"no (E_X)"}')
  expect(failed('internal')).toContain('"code":"server_error"')
  expect(failed('gone')).toMatch(/^event: response\.failed\n.*"status":"failed".*"code":"invalid_prompt"/s)
})
