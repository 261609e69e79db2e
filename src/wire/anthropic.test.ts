import fc from 'fast-check'
import { expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { anthropic } from './anthropic.ts'
import type { AnswerHead, AnswerPart } from './dialect.ts'
import { parseRequest } from './request.ts'

const HEAD: AnswerHead = { answerId: 'a', model: 'm', createdS: 1, promptTokens: 9, includeUsage: true, tools: [] }
const USAGE = { promptTokens: 9, cachedTokens: 4, completionTokens: 3 }
const user = { role: 'user', content: 'hi' }
const NOT_THERE = { type: 'tool_reference', tool_name: 'Gone' }
const MARK = { cache_control: { type: 'ephemeral' } }

function itemsOf(body: object): unknown {
  return parseRequest(anthropic, { model: 'm', max_tokens: 5, ...body }).items
}

function refusal(body: unknown): string {
  try {
    parseRequest(anthropic, body)
  } catch (error) {
    if (error instanceof GyreError) return `${error.code} ${error.message}`
    throw error
  }
  return 'accepted'
}

test('blocks of a user message become items in their order', () => {
  const items = itemsOf({
    system: [{ type: 'text', text: 'S', ...MARK }],
    tools: [{ name: 'Bash', description: 'runs', input_schema: { type: 'object' }, ...MARK }],
    messages: [
      user,
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'T', signature: 's' },
          { type: 'text', text: 'a' },
          { type: 'tool_use', id: 'c1', name: 'Bash', input: { x: 1 } },
          { type: 'tool_use', id: 'c2', name: 'Bash', input: {} },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'c1', content: 'R1' },
          { type: 'tool_result', tool_use_id: 'c2', content: [{ type: 'text', text: 'R2' }], is_error: true },
          { type: 'text', text: 'and', ...MARK },
        ],
      },
    ],
  })
  expect(items).toEqual([
    { kind: 'tools', tools: [{ name: 'Bash', description: 'runs', parameters: { type: 'object' } }] },
    { kind: 'system', text: 'S' },
    { kind: 'user', text: 'hi' },
    {
      kind: 'assistant',
      thinking: 'T',
      text: 'a',
      toolCalls: [
        { id: 'c1', name: 'Bash', argumentsText: '{"x":1}' },
        { id: 'c2', name: 'Bash', argumentsText: '{}' },
      ],
    },
    { kind: 'tool-result', callId: 'c1', name: '', text: 'R1', isError: false },
    { kind: 'tool-result', callId: 'c2', name: '', text: 'R2', isError: true },
    { kind: 'user', text: 'and' },
  ])
})

test('what only caching and billing read does not change the items', () => {
  const billing = { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.332.ee0; cc_entrypoint=sdk-cli;' }
  const plain = itemsOf({ system: 'S', messages: [{ role: 'system', content: 'env' }, user] })
  const marked = itemsOf({
    system: [billing, { type: 'text', text: 'S', ...MARK }],
    messages: [
      { role: 'system', content: [{ type: 'text', text: 'env', ...MARK }] },
      { role: 'user', content: [{ type: 'text', text: 'hi', ...MARK }] },
    ],
  })
  expect(marked).toEqual(plain)
})

test('thinking that only its writer could read says nothing to the policy', () => {
  const thinking = { type: 'thinking', thinking: 'T', signature: 'gyre-a-0' }
  const redacted = { type: 'redacted_thinking', data: 'b3BhcXVl' }
  const items = itemsOf({ messages: [user, { role: 'assistant', content: [redacted, thinking] }, user] })
  expect(items).toMatchObject([{}, { kind: 'assistant', thinking: 'T', text: '', toolCalls: [] }, {}])
})

test('tools that come and go in mid-conversation are spelled out there, and the header stays', () => {
  const listed = { name: 'Late', description: 'd', input_schema: { type: 'object' }, defer_loading: true }
  const inline = { name: 'Inline', input_schema: { type: 'object' } }
  const changes = [
    { type: 'text', text: 'news' },
    { type: 'tool_addition', tool: { type: 'tool_reference', name: 'Late' } },
    { type: 'tool_addition', tool: { type: 'tool_definition', definition: inline }, ...MARK },
    { type: 'tool_removal', tool: { type: 'tool_reference', name: 'Late' } },
  ]
  const items = itemsOf({ tools: [listed], messages: [user, { role: 'system', content: changes }, user] })
  const text = [
    'news',
    '{"name":"Late","description":"d","parameters":{"type":"object"}}',
    '{"name":"Inline","description":"","parameters":{"type":"object"}}',
    'The tool "Late" is no longer available.',
  ].join('\n')
  expect(items).toEqual([
    { kind: 'user', text: 'hi' },
    { kind: 'system', text },
    { kind: 'user', text: 'hi' },
  ])
})

test('a system message in the middle of the list keeps its place', () => {
  const items = itemsOf({ messages: [user, { role: 'system', content: 'reminder' }, user] })
  expect(items).toMatchObject([{ kind: 'user' }, { kind: 'system', text: 'reminder' }, { kind: 'user' }])
})

test('a deferred tool is absent from the header and spelled out where a result refers to it', () => {
  const deferred = { name: 'TaskCreate', description: 'd', input_schema: { type: 'object' }, defer_loading: true }
  const reference = { type: 'tool_reference', tool_name: 'TaskCreate' }
  const result = { type: 'tool_result', tool_use_id: 'c', content: [reference] }
  const items = itemsOf({ tools: [deferred], messages: [{ role: 'user', content: [result] }] })
  expect(items).toEqual([
    {
      kind: 'tool-result',
      callId: 'c',
      name: '',
      text: '{"name":"TaskCreate","description":"d","parameters":{"type":"object"}}',
      isError: false,
    },
  ])
})

test.each([
  [[], 'E_WIRE_MALFORMED the request body: '],
  [{ messages: [] }, 'E_WIRE_MALFORMED messages: '],
  [{ messages: [{ role: 'user', content: null }] }, 'E_WIRE_MALFORMED messages.0.content: must be a string or a list'],
  [{ messages: [{ role: 'user', content: [{ type: 'text' }] }] }, 'E_WIRE_MALFORMED messages.0.content.0.text: '],
  [{ messages: [{ role: 'tool', content: 'x' }] }, 'E_WIRE_MALFORMED messages.0.role: '],
  [{ messages: [user, { role: 'assistant', content: 'x' }] }, 'E_WIRE_MALFORMED messages: must not end'],
  [
    { messages: [{ role: 'user', content: [{ type: 'image' }] }] },
    'E_WIRE_UNSUPPORTED messages.0.content.0: content of type "image"',
  ],
  [
    {
      messages: [
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'document' }] }] },
      ],
    },
    'E_WIRE_UNSUPPORTED messages.0.content.0.content.0: content of type "document"',
  ],
  [
    { messages: [user], tools: [{ type: 'web_search_20250305', name: 'web_search' }] },
    'E_WIRE_UNSUPPORTED tools.0: the server tool "web_search"',
  ],
  [{ messages: [user], stop_sequences: ['x'] }, 'E_WIRE_UNSUPPORTED stop_sequences: '],
  [
    { messages: [user], tools: [{ name: 't', input_schema: {} }], tool_choice: { type: 'any' } },
    'E_WIRE_UNSUPPORTED tool_choice: the tool choice "any"',
  ],
  [
    { messages: [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: [NOT_THERE] }] }] },
    'E_WIRE_MALFORMED messages.0.content.0.content.0.tool_name: names the tool "Gone"',
  ],
  [
    {
      messages: [user, { role: 'system', content: [{ type: 'tool_addition', tool: { type: 'mcp_tool_reference' } }] }],
    },
    'E_WIRE_UNSUPPORTED messages.1.content.0.tool: a tool as "mcp_tool_reference"',
  ],
  [{ messages: [user, { role: 'assistant', content: [{ type: 'server_tool_use' }] }, user] }, 'type "server_tool_use"'],
  [
    {
      messages: [user],
      tools: [{ name: 't', input_schema: {}, type: 'custom', eager_input_streaming: true }],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      output_config: { effort: 'high', format: { type: 'json_schema', schema: { type: 'object' } } },
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      cache_control: { type: 'ephemeral' },
    },
    'accepted',
  ],
  [{ messages: [user], thinking: { type: 'enabled' }, metadata: {}, stop_sequences: [] }, 'accepted'],
])('%j is judged by name and place', (body, expected) => {
  expect(refusal(body)).toContain(expected)
})

test('any JSON is parsed or refused with a typed error', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      // A thrown error that is not ours would end the test.
      expect(refusal(value)).toMatch(/^E_WIRE/)
      refusal({ messages: value, tools: value, system: value })
      refusal({ messages: [{ role: 'user', content: [value] }, user] })
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

interface Event {
  type: string
  index: number
  content_block: Record<string, unknown>
  delta: { type: string; text?: string; thinking?: string; partial_json?: string; signature?: string }
}

/** Puts the blocks of a stream together as a client does. */
function assembled(text: string): unknown[] {
  const blocks: Record<string, unknown>[] = []
  for (const frame of text.split('\n\n').filter((f) => f !== '')) {
    const event = JSON.parse(frame.slice(frame.indexOf('\ndata: ') + 7)) as Event
    const block = blocks[event.index]
    if (event.type === 'content_block_start') blocks[event.index] = { ...event.content_block }
    if (event.type !== 'content_block_delta' || block === undefined) continue
    if (event.delta.type === 'text_delta') block['text'] = String(block['text']) + String(event.delta.text)
    if (event.delta.type === 'thinking_delta')
      block['thinking'] = String(block['thinking']) + String(event.delta.thinking)
    if (event.delta.type === 'signature_delta') block['signature'] = event.delta.signature
    if (event.delta.type === 'input_json_delta') block['input'] = JSON.parse(String(event.delta.partial_json))
  }
  return blocks
}

test('a stream of any parts adds up to the body that is not streamed', () => {
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const stream = anthropic.answerStream(HEAD)
      const text = [stream.open(), ...parts.flatMap((p) => [stream.part(p), stream.keepAlive()])].join('')
      const body = anthropic.answerBody(HEAD, parts, 'stop', USAGE) as unknown as { content: unknown[] }
      expect(assembled(text + stream.close('stop', USAGE))).toEqual(body.content)
    }),
  )
})

test('the counts of a prompt add up to the whole prompt', () => {
  const body = anthropic.answerBody(HEAD, [], 'stop', USAGE) as unknown as { usage: Record<string, number> }
  expect(body.usage).toEqual({
    input_tokens: 5,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 4,
    output_tokens: 3,
  })
})
