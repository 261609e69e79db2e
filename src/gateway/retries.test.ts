import { expect, test } from 'vitest'
import { says, sleep, startRig, turn, until } from '../../test/support/gateway-rig.ts'
import type { Rig } from '../../test/support/gateway-rig.ts'
import { engineId, executionId } from '../core/ids.ts'
import type { AssistantItem } from '../core/items.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'

interface Ask {
  readonly messages?: readonly object[]
  readonly stream?: boolean
  readonly maxTokens?: number
  readonly headers?: Record<string, string>
  readonly signal?: AbortSignal
}

async function post(execution: ExecutionEndpoint, ask: Ask = {}): Promise<Response> {
  return fetch(`${execution.baseUrl}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${execution.apiKey}`, ...ask.headers },
    body: JSON.stringify({
      messages: ask.messages ?? [{ role: 'user', content: 'hi' }],
      stream: ask.stream ?? false,
      max_tokens: ask.maxTokens ?? 1000,
    }),
    signal: ask.signal ?? null,
  })
}

interface Message {
  role: string
  content: string | null
}

async function answer(execution: ExecutionEndpoint, ask: Ask = {}): Promise<Message> {
  const body = (await (await post(execution, ask)).json()) as { choices: { message: Message }[] }
  const message = body.choices[0]?.message
  if (message === undefined) throw new Error(JSON.stringify(body))
  return message
}

function prepare(rig: Rig, ...turns: readonly (string | AssistantItem)[]): ReturnType<Rig['open']> {
  rig.addEngine('e', { ...says(...turns), chunkTokens: 4, chunkDelayMs: 3 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  return execution
}

const LONG = 'words and more words '.repeat(24)

test('a client that hangs up and asks again without streaming gets the generation that is running', async () => {
  await using rig = await startRig()
  const execution = prepare(rig, LONG)
  const leaving = new AbortController()
  const first = await post(execution, { stream: true, signal: leaving.signal })
  await until(() => (rig.legs[0]?.tokenIds.length ?? 0) > 20)
  leaving.abort()
  await expect(first.text()).rejects.toThrow('aborted')
  expect((await answer(execution)).content).toBe(LONG)
  expect(rig.legs).toHaveLength(1)
  expect(rig.sink.records).toHaveLength(1)
})

test('a client that hangs up for good stops the generation, and the partial is recorded as aborted', async () => {
  await using rig = await startRig({ limits: { abandonMs: 20 } })
  const execution = prepare(rig, LONG)
  const leaving = new AbortController()
  const first = await post(execution, { stream: true, signal: leaving.signal })
  await until(() => (rig.legs[0]?.tokenIds.length ?? 0) > 20)
  leaving.abort()
  await expect(first.text()).rejects.toThrow('aborted')
  await until(() => rig.sink.records.length === 1)
  const node = rig.sink.records[0]?.nodes.at(-1)
  expect(node).toMatchObject({ status: 'aborted', provenance: 'policy' })
  expect([...(node?.tokenIds ?? [])]).toEqual(rig.legs[0]?.tokenIds)
  expect(node?.tokenIds.length).toBeLessThan(LONG.length)
  // Asking again after that is a new question.
  expect((await answer(execution)).content).toBe(LONG)
  expect(rig.sink.records).toHaveLength(2)
  expect(rig.gateway.stats()).toMatchObject({ harnessErrors: 0, tokensMismatched: 0 })
})

test('an answer that was not used is replayed to a retry, and sampled anew once it was used', async () => {
  await using rig = await startRig()
  const execution = prepare(rig, turn('look', ['bash', '{}']), 'done')
  const first = await answer(execution)
  expect(await answer(execution)).toEqual(first)
  expect(rig.legs).toHaveLength(1)
  const history = [{ role: 'user', content: 'hi' }, first, { role: 'tool', tool_call_id: 'call_0_0', content: 'r' }]
  await answer(execution, { messages: history })
  const again = await answer(execution)
  expect(rig.legs).toHaveLength(3)
  expect(again).not.toEqual(first)
  expect(rig.legs[2]?.request.sampling.seed).not.toBe(rig.legs[0]?.request.sampling.seed)
})

test('equal requests of two clients that both wait are two samples, and neither is an orphan', async () => {
  await using rig = await startRig({ limits: { hangUpMs: 30 } })
  const execution = prepare(rig, LONG)
  const answers = await Promise.all([answer(execution), answer(execution)])
  expect(answers.map(({ content }) => content)).toEqual([LONG, LONG])
  expect(rig.legs).toHaveLength(2)
  expect(rig.legs[1]?.request.sampling.seed).not.toBe(rig.legs[0]?.request.sampling.seed)
  await rig.gateway.closeExecution(execution.id)
  expect(rig.sink.orphans).toEqual([])
  expect(rig.sink.tree(execution.id).leaves()).toHaveLength(2)
})

test('a retry that is here before its first connection is seen to close gets the generation that is running', async () => {
  await using rig = await startRig({ limits: { hangUpMs: 2000 } })
  const execution = prepare(rig, LONG)
  const leaving = new AbortController()
  const first = await post(execution, { stream: true, signal: leaving.signal })
  await until(() => (rig.legs[0]?.tokenIds.length ?? 0) > 20)
  const again = answer(execution)
  await sleep(20)
  leaving.abort()
  await expect(first.text()).rejects.toThrow('aborted')
  expect((await again).content).toBe(LONG)
  expect(rig.legs).toHaveLength(1)
})

test('a client that says it retries joins at once, though the first still waits', async () => {
  await using rig = await startRig({ limits: { hangUpMs: 60_000 } })
  const execution = prepare(rig, LONG)
  const first = answer(execution)
  await until(() => (rig.legs[0]?.tokenIds.length ?? 0) > 20)
  const retry = { headers: { 'x-stainless-retry-count': '1' } }
  expect(await answer(execution, retry)).toEqual(await first)
  expect(rig.legs).toHaveLength(1)
})

test('a call that is held for long outlives engines that go and come, in silence that no client feels', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 15 } })
  const execution = rig.open('x1')
  const streamed = post(execution, { stream: true }).then(async (response) => response.text())
  const whole = answer(rig.open('x2'))
  await until(() => rig.gateway.stats().held === 2)
  for (let n = 0; n < 3; n++) {
    rig.addEngine('e', says('words'))
    rig.gateway.removeEngine(engineId('e'))
    rig.route(execution.id, 'e', 2 * n)
    rig.route(executionId('x2'), 'e', 2 * n)
    await sleep(40)
  }
  expect(rig.legs).toHaveLength(0)
  rig.addEngine('e', says('words'))
  expect((await whole).content).toBe('words')
  const frames = await streamed
  expect(frames).toContain('words')
  expect(frames.split('"choices":[]').length).toBeGreaterThan(3)
  expect(rig.gateway.stats()).toMatchObject({ held: 0, harnessErrors: 0 })
})

test('another token bound is another question, and the answer it replaced is an orphan', async () => {
  await using rig = await startRig()
  const execution = prepare(rig, 'ten tokens')
  await answer(execution, { maxTokens: 5 })
  await answer(execution, { maxTokens: 50 })
  await rig.gateway.closeExecution(execution.id)
  expect(rig.sink.records.map((record) => record.callId)).toEqual(['x1.0', 'x1.1'])
  expect(rig.sink.orphans).toEqual(['x1.0'])
})

test('a retry that says so is answered from the record, however late, and an empty answer is never replayed', async () => {
  await using rig = await startRig({ limits: { replayMs: 0 } })
  const execution = prepare(rig, 'words')
  await answer(execution)
  await sleep(5)
  await answer(execution, { headers: { 'x-stainless-retry-count': '1' } })
  expect(rig.legs).toHaveLength(1)
  await answer(execution)
  expect(rig.legs).toHaveLength(2)
  const silent = rig.open('x2')
  rig.addEngine('silent', says(''))
  rig.route(silent.id, 'silent')
  expect((await answer(silent)).content).toBe('')
  await answer(silent)
  expect(rig.legs).toHaveLength(4)
})

test('closing an execution ends its calls, keeps their partials, and refuses later ones', async () => {
  await using rig = await startRig()
  const execution = prepare(rig, LONG)
  const running = post(execution, { stream: true }).then(async (response) => response.text())
  await until(() => (rig.legs[0]?.tokenIds.length ?? 0) > 20)
  rig.sink.delayMs = 20
  const [summary, again] = await Promise.all([
    rig.gateway.closeExecution(execution.id),
    rig.gateway.closeExecution(execution.id),
  ])
  expect(again).toEqual(summary)
  expect(rig.sink.records[0]?.nodes.at(-1)).toMatchObject({ status: 'aborted' })
  expect(summary).toEqual({ modelCalls: 1, sampledTokens: rig.legs[0]?.tokenIds.length, harnessErrors: 0 })
  expect(await running).toContain('has ended')
  const late = await post(execution)
  expect(late.status).toBe(410)
  expect(await late.text()).toContain('E_GATEWAY_CLOSED')
})

test('records become durable in commit order, and a sink that fails is told, never passed over', async () => {
  await using rig = await startRig()
  const execution = prepare(rig, 'one')
  rig.sink.appendCall = async () => Promise.reject(new Error('disk full'))
  const response = await post(execution)
  expect(response.status).toBe(500)
  expect(await response.text()).not.toContain('disk full')
  expect(String(rig.failures[0])).toContain('disk full')
  expect(rig.gateway.stats().harnessErrors).toBe(1)
})
