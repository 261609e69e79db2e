import Anthropic from '@anthropic-ai/sdk'
import type { MessageParam, Tool, ToolResultBlockParam } from '@anthropic-ai/sdk/resources/messages'
import type { BetaMessage, BetaMessageParam } from '@anthropic-ai/sdk/resources/beta/messages'
import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { says, sleep, startRig, turn } from '../../test/support/gateway-rig.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'
import type { ChatCodec } from '../tokens/codec.ts'

const TOOLS: Tool[] = [{ name: 'Bash', description: 'runs', input_schema: { type: 'object', properties: {} } }]

function client({ baseUrl, apiKey }: ExecutionEndpoint): Anthropic {
  return new Anthropic({ baseURL: baseUrl, apiKey, maxRetries: 0 })
}

test('a streamed tool loop through the official client records exactly what the engine saw', async () => {
  await using rig = await startRig()
  const first = { ...turn('two at once', ['Bash', '{"b": 1, "a": 2}'], ['Bash', '{}']), thinking: 'hm' }
  rig.addEngine('e', { ...says(first, 'done'), chunkTokens: 3 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const messages: MessageParam[] = [
    { role: 'user', content: [{ type: 'text', text: 'go', cache_control: { type: 'ephemeral' } }] },
  ]
  const request = { model: 'claude-x', max_tokens: 500, tools: TOOLS, system: 'S' }

  const one = await api.messages.stream({ ...request, messages }).finalMessage()
  expect(one.stop_reason).toBe('tool_use')
  expect(one.content.map((block) => block.type)).toEqual(['thinking', 'text', 'tool_use', 'tool_use'])
  const uses = one.content.filter((block) => block.type === 'tool_use')
  expect(uses[0]?.input).toEqual({ b: 1, a: 2 })
  const results: ToolResultBlockParam[] = uses.map((use) => ({
    type: 'tool_result',
    tool_use_id: use.id,
    content: 'ok',
  }))
  // The client re-keys the arguments and says the first message as a plain string.
  const echoed = one.content.map((block) =>
    block.type === 'tool_use' && block === uses[0] ? { ...block, input: { a: 2, b: 1 } } : block,
  )
  const second: MessageParam[] = [
    { role: 'user', content: 'go' },
    { role: 'assistant', content: echoed },
    { role: 'user', content: results },
  ]

  const counted = await api.messages.countTokens({ model: 'claude-x', tools: TOOLS, system: 'S', messages: second })
  const two = await api.messages.create({ ...request, messages: second })
  expect(two.content).toEqual([{ type: 'text', text: 'done' }])
  expect(two.usage.input_tokens).toBe(counted.input_tokens)
  expect(two.usage.output_tokens).toBe(rig.legs[1]?.tokenIds.length)

  const tree = rig.sink.tree(execution.id)
  const recorded = tree.calls().map((call) => [...tree.pathTokenIds(call.node)])
  expect(recorded).toEqual(rig.legs.map((leg) => [...leg.request.promptIds, ...leg.tokenIds]))
  expect(tree.leaves()).toHaveLength(1)
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
})

test('a waiting client gets its headers at once and typed pings, and nothing of the end before the record is durable', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 20 } })
  rig.addEngine('e', says('hello'))
  const execution = rig.open('x1')
  rig.sink.delayMs = 80
  const events: string[] = []
  const response = await fetch(`${execution.baseUrl}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': execution.apiKey, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', max_tokens: 9, stream: true, messages: [{ role: 'user', content: 'hi' }] }),
  })
  expect(response.status).toBe(200)
  await sleep(60)
  expect(rig.gateway.stats().held).toBe(1)
  rig.route(execution.id, 'e')
  for await (const chunk of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    for (const [, type] of chunk.matchAll(/^event: (.*)$/gm)) {
      if (type === 'message_stop') expect(rig.sink.records).toHaveLength(1)
      events.push(String(type))
    }
  }
  const withoutPings = events.filter((type) => type !== 'ping')
  expect(events.length - withoutPings.length).toBeGreaterThan(3)
  expect(withoutPings[0]).toBe('message_start')
  expect(withoutPings.slice(-3)).toEqual(['content_block_stop', 'message_delta', 'message_stop'])
})

test('an answer that is not streamed survives a long wait behind blanks', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 15 } })
  rig.addEngine('e', says('late'))
  const execution = rig.open('x1')
  const pending = client(execution).messages.create({
    model: 'm',
    max_tokens: 9,
    messages: [{ role: 'user', content: 'hi' }],
  })
  setTimeout(() => rig.route(execution.id, 'e'), 60)
  expect((await pending).content).toEqual([{ type: 'text', text: 'late' }])
})

test('a prompt over the context is refused with the words harnesses compact on', async () => {
  await using rig = await startRig({ maxContext: 50 })
  const execution = rig.open('x1')
  const ask = client(execution).messages.create({
    model: 'm',
    max_tokens: 9,
    messages: [{ role: 'user', content: 'x'.repeat(80) }],
  })
  const error = await ask.then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(Anthropic.BadRequestError)
  expect(String(error)).toMatch(/prompt is too long: \d+ tokens > 49 maximum/)
  expect(rig.gateway.stats().harnessErrors).toBe(0)
})

test('calls of different threads in parallel share their prefix and stay apart', async () => {
  await using rig = await startRig()
  rig.addEngine('e', { ...says('same words'), chunkDelayMs: 1, chunkTokens: 2 })
  const execution = rig.open('x1', { profile: 'claude-code' })
  rig.route(execution.id, 'e')
  const api = client(execution)
  const ask = (agent: string): Promise<unknown> =>
    api.messages.create(
      { model: 'm', max_tokens: 50, tools: TOOLS, messages: [{ role: 'user', content: 'hi' }] },
      { headers: { 'x-claude-code-agent-id': agent } },
    )
  await Promise.all(['a', 'b', 'c'].map(async (agent) => ask(agent)))
  const tree = rig.sink.tree(execution.id)
  expect(
    tree
      .calls()
      .map((call) => `${call.thread} ${call.role}`)
      .sort(),
  ).toEqual(['a sub-agent', 'b sub-agent', 'c sub-agent'])
  const [leg] = rig.legs
  expect(tree.tokenCount).toBe((leg?.request.promptIds.length ?? 0) + 3 * (leg?.tokenIds.length ?? 0))
  const seeds = new Set(rig.legs.map(({ request }) => request.sampling.seed))
  expect(seeds.size).toBe(3)
})

test('thinking is signed, streamed and not, and what comes back with its signature is the same turn', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says({ ...turn('one'), thinking: 'first' }, { ...turn('two'), thinking: 'second' }, 'three'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const messages: MessageParam[] = [{ role: 'user', content: 'a' }]
  const request = { model: 'm', max_tokens: 500, thinking: { type: 'enabled' as const, budget_tokens: 1024 } }

  const one = await api.messages.stream({ ...request, messages }).finalMessage()
  messages.push({ role: 'assistant', content: one.content }, { role: 'user', content: 'b' })
  const two = await api.messages.create({ ...request, messages })
  messages.push({ role: 'assistant', content: two.content }, { role: 'user', content: 'c' })
  await api.messages.create({ ...request, messages })

  const signatures = [one, two].map(({ content: [block] }) => (block?.type === 'thinking' ? block.signature : ''))
  expect(signatures.every((signature) => signature.length > 0)).toBe(true)
  expect(new Set(signatures).size).toBe(2)
  expect(rig.sink.tree(execution.id).leaves()).toHaveLength(1)
})

test('tools found in mid-conversation leave the path as it was', async () => {
  const parsedBy: string[][] = []
  const outputParser: ChatCodec['outputParser'] = (tools) => {
    parsedBy.push(tools.map(({ name }) => name))
    return byteCodec.outputParser(tools)
  }
  await using rig = await startRig({ codec: { ...byteCodec, outputParser } })
  const found = turn('', ['ToolSearch', '{"query": "select:Late"}'])
  rig.addEngine('e', says(found, turn('', ['Late', '{"n": 1.0}']), 'done'))
  const execution = rig.open('x1', { profile: 'claude-code' })
  rig.route(execution.id, 'e')
  const { messages: beta } = client(execution).beta
  const schema = { type: 'object' as const }
  const late = { name: 'Late', description: 'comes late', input_schema: schema, defer_loading: true }
  const held = { name: 'DeferredToolPlaceholder', input_schema: schema, defer_loading: true }
  const [bash, search] = ['Bash', 'ToolSearch'].map((name) => ({ name, description: name, input_schema: schema }))
  const before = [bash, search, held].filter((tool) => tool !== undefined)
  const after = [bash, late, search, held].filter((tool) => tool !== undefined)
  const ask = (tools: typeof before, ...messages: BetaMessageParam[]): Promise<BetaMessage> =>
    beta.create({ model: 'm', max_tokens: 500, system: 'S', tools, messages, betas: ['advanced-tool-use-2025-11-20'] })

  const cache_control = { type: 'ephemeral' as const }
  const task: BetaMessageParam = { role: 'user', content: 'go' }
  const one = await ask(before, task, { role: 'system', content: [{ type: 'text', text: 'env', cache_control }] })
  const history: BetaMessageParam[] = [task, { role: 'system', content: 'env' }]
  const reference = { type: 'tool_reference' as const, tool_name: 'Late' }
  history.push(
    { role: 'assistant', content: one.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'call_0_0', content: [reference], cache_control }] },
  )
  const two = await ask(after, ...history)
  expect(two.content).toMatchObject([{ type: 'tool_use', name: 'Late', input: { n: 1 } }])
  history.push(
    { role: 'assistant', content: two.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'call_1_0', content: 'ok', is_error: false }] },
  )
  expect((await ask(after, ...history)).content).toMatchObject([{ type: 'text', text: 'done' }])

  const tree = rig.sink.tree(execution.id)
  expect(tree.leaves()).toHaveLength(1)
  expect(parsedBy.map((names) => names.includes('Late'))).toEqual([false, true, true])
  expect(byteCodec.decode(rig.legs[2]?.request.promptIds ?? [])).toContain('"description":"comes late"')
  expect(byteCodec.decode(rig.legs[0]?.request.promptIds ?? [])).not.toContain('DeferredToolPlaceholder')
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
})

test('a title asked for by a schema is answered as a call on the side', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('{"title": "A title"}'))
  const execution = rig.open('x1', { profile: 'claude-code' })
  rig.route(execution.id, 'e')
  const schema = { type: 'object', properties: { title: { type: 'string' } } }
  const titled = await client(execution).beta.messages.create({
    model: 'm',
    max_tokens: 50,
    tools: [],
    system: 'Generate a concise, sentence-case title',
    output_config: { format: { type: 'json_schema', schema } },
    messages: [{ role: 'user', content: 'go' }],
  })
  expect(titled.content).toMatchObject([{ type: 'text', text: '{"title": "A title"}' }])
  expect(rig.sink.records.map((record) => record.role)).toEqual(['side'])
})
