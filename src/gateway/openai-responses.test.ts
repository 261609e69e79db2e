import OpenAI, { BadRequestError, NotFoundError } from 'openai'
import type {
  ResponseCreateParamsNonStreaming,
  ResponseInput,
  ResponseInputItem,
  ResponseOutputItem,
  Tool,
} from 'openai/resources/responses/responses'
import { expect, test } from 'vitest'
import { says, sleep, startRig, turn, until } from '../../test/support/gateway-rig.ts'
import type { Rig } from '../../test/support/gateway-rig.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'

const NO_ARGUMENTS = { type: 'object', properties: {} }
const RUN: Tool = { type: 'function', name: 'run', description: 'runs', parameters: NO_ARGUMENTS, strict: false }
const TOOLS: Tool[] = [
  RUN,
  { type: 'custom', name: 'patch', description: 'patches' },
  {
    type: 'namespace',
    name: 'team',
    description: 'Others.',
    tools: [{ type: 'function', name: 'ask', description: 'asks', parameters: NO_ARGUMENTS }],
  },
  { type: 'web_search' },
]
const BASE = { model: 'm', instructions: 'be brief', tools: TOOLS }

function client({ baseUrl, apiKey }: ExecutionEndpoint, version = '/v1'): OpenAI {
  return new OpenAI({ baseURL: baseUrl + version, apiKey, maxRetries: 0 })
}

function expectExact(rig: Rig, id: ExecutionId): void {
  const tree = rig.sink.tree(id)
  const recorded = tree.calls().map((call) => [...tree.pathTokenIds(call.node)])
  expect(recorded).toEqual(rig.legs.map((leg) => [...leg.request.promptIds, ...leg.tokenIds]))
  expect(tree.leaves()).toHaveLength(1)
  expect(tree.tokenCount).toBe(recorded.at(-1)?.length)
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
}

/** What a client makes of its tool calls. */
function outputsOf(items: readonly ResponseOutputItem[]): ResponseInputItem[] {
  return items.flatMap((item): ResponseInputItem[] => {
    if (item.type === 'function_call') {
      return [{ type: 'function_call_output', call_id: item.call_id, output: `result of ${item.call_id}` }]
    }
    if (item.type !== 'custom_tool_call') return []
    return [{ type: 'custom_tool_call_output', call_id: item.call_id, output: 'patched' }]
  })
}

test('in a loop of calls through the official client, streamed and not, every call goes on with one path', async () => {
  await using rig = await startRig()
  const first = turn('both', ['run', '{ "command" :  5000.0}'], ['team.ask', '{}'], ['patch', '{"input":"*** a\\n"}'])
  rig.addEngine('e', {
    ...says(
      { ...first, thinking: 'thöught' },
      { ...turn('', ['patch', '{"diff":"no input"}'], ['gone', '{"a":1}']), thinking: 'again' },
      turn('', ['run', '{}']),
      'done',
    ),
    chunkTokens: 3,
  })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const input: ResponseInput = [{ role: 'user', content: [{ type: 'input_text', text: 'go' }] }]
  for (let i = 0; i < 4; i++) {
    const asked = { ...BASE, input }
    const response = i % 2 === 0 ? await api.responses.stream(asked).finalResponse() : await api.responses.create(asked)
    expect(response).toMatchObject({ status: 'completed', model: 'm', incomplete_details: null })
    expect(response.usage?.input_tokens).toBe(rig.legs[i]?.request.promptIds.length)
    expect(response.usage?.output_tokens).toBe(rig.legs[i]?.tokenIds.length)
    if (i === 0) {
      expect(response.output_text).toBe('both')
      expect(response.output).toMatchObject([
        { type: 'reasoning', summary: [{ type: 'summary_text', text: 'thöught' }] },
        { type: 'message', role: 'assistant' },
        { type: 'function_call', call_id: 'call_0_0', name: 'run', arguments: '{ "command" :  5000.0}' },
        { type: 'function_call', call_id: 'call_0_1', namespace: 'team', name: 'ask' },
        { type: 'custom_tool_call', call_id: 'call_0_2', name: 'patch', input: '*** a\n' },
      ])
    }
    // Once with nothing but the handle of the thinking, as clients may.
    const echo = response.output.map((item) => (item.type === 'reasoning' && i === 1 ? { ...item, summary: [] } : item))
    input.push(...(echo as ResponseInput), ...outputsOf(response.output))
    if (i === 3) expect(response.output_text).toBe('done')
  }
  expect(rig.legs).toHaveLength(4)
  expectExact(rig, execution.id)
})

test('a path without the version, an input of one text, and counting before the call', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('hello'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  for (const version of ['', '/v1']) {
    const { object, input_tokens } = await client(execution, version).responses.inputTokens.count({
      ...BASE,
      input: 'hi',
    })
    const { output_text, usage } = await client(execution, version).responses.create({ ...BASE, input: 'hi' })
    expect({ object, input_tokens, output_text }).toEqual({
      object: 'response.input_tokens',
      input_tokens: usage?.input_tokens,
      output_text: 'hello',
    })
  }
})

test('a client that waits long sees signs of life and then the whole answer', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 40 } })
  rig.addEngine('e', { ...says('a slow answer'), chunkTokens: 4, chunkDelayMs: 100 })
  const execution = rig.open('x1')
  const stream = client(execution).responses.stream({ ...BASE, input: 'hi' })
  const events: string[] = []
  stream.on('event', (event) => events.push(event.type))
  await until(() => events.filter((type) => type === 'response.in_progress').length > 1)
  await sleep(50)
  rig.route(execution.id, 'e')
  expect((await stream.finalResponse()).output_text).toBe('a slow answer')
  expect(events.slice(events.indexOf('response.output_item.added'))).toContain('response.in_progress')
  expect(events.at(-1)).toBe('response.completed')
})

test('a bound on the answer is kept and said', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('a long answer'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const asked = { ...BASE, input: 'hi', max_output_tokens: 6 }
  const response = await client(execution).responses.create(asked)
  expect(response).toMatchObject({
    status: 'incomplete',
    output_text: 'a long',
    incomplete_details: { reason: 'max_output_tokens' },
  })
  const stream = client(execution).responses.stream(asked)
  let end = ''
  stream.on('event', ({ type }) => void (end = type))
  expect((await stream.finalResponse()).status).toBe('incomplete')
  expect(end).toBe('response.incomplete')
})

test('errors have the shape the official client reads', async () => {
  await using rig = await startRig({ maxContext: 300 })
  rig.addEngine('e', says('hello'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const failing = async (body: Partial<ResponseCreateParamsNonStreaming>): Promise<unknown> =>
    api.responses.create({ model: 'm', ...body }).catch((error: unknown) => error)
  const unsupported = await failing({ input: 'x', previous_response_id: 'resp_0' })
  expect(unsupported).toBeInstanceOf(BadRequestError)
  expect(unsupported).toMatchObject({ status: 400, type: 'invalid_request_error', code: 'E_WIRE_UNSUPPORTED' })
  expect(await failing({ input: [] })).toMatchObject({ status: 400, code: 'E_WIRE_MALFORMED' })
  expect(await failing({ input: 'x'.repeat(400) })).toMatchObject({ status: 400, code: 'context_length_exceeded' })
  const fetched = await api.responses.retrieve('resp_0').catch((error: unknown) => error)
  expect(fetched).toBeInstanceOf(NotFoundError)
  expect(rig.legs).toEqual([])
})
