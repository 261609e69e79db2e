import OpenAI from 'openai'
import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { says, startRig } from '../../test/support/gateway-rig.ts'
import { extendedProfile } from '../trajectory/profiles.ts'

test("an execution with its user's profile: roles, threads, and a clock in the prompt that the policy never reads", async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('one', 'two', 'three'))
  const profile = extendedProfile({
    name: 'mine',
    threadHeaders: ['x-agent'],
    subAgent: [{ header: 'x-agent' }],
    volatileSystemLines: ['Now: '],
  })
  const execution = rig.open('x1', { profile })
  rig.route(execution.id, 'e')
  const api = new OpenAI({ baseURL: `${execution.baseUrl}/v1`, apiKey: execution.apiKey, maxRetries: 0 })
  type Messages = OpenAI.ChatCompletionMessageParam[]
  const ask = async (clock: string, messages: Messages, headers = {}): Promise<string> => {
    const system = { role: 'system' as const, content: `You help.\nNow: ${clock}` }
    const answer = await api.chat.completions.create({ model: 'm', messages: [system, ...messages] }, { headers })
    return answer.choices[0]?.message.content ?? ''
  }
  const go: Messages = [{ role: 'user', content: 'Go.' }]
  const said = await ask('12:00', go)
  await ask('12:01', [...go, { role: 'assistant', content: said }, { role: 'user', content: 'On.' }])
  await ask('12:02', [{ role: 'user', content: 'Look.' }], { 'x-agent': 'a1' })

  const tree = rig.sink.tree(execution.id)
  expect(tree.calls().map(({ role, thread }) => `${role} ${thread}`)).toEqual(['main ', 'main ', 'sub-agent a1'])
  const [first, second] = tree.calls()
  expect(tree.pathNodes(second?.node ?? -1).map(({ id }) => id)).toContain(first?.node)
  for (const { request } of rig.legs) expect(byteCodec.decode(request.promptIds)).not.toContain('Now:')
  expect(rig.gateway.stats().tokensMismatched).toBe(0)
})

test('a held request hears from the gateway well before its harness gives up', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 60_000 } })
  const profile = extendedProfile({ name: 'mine', silenceLimitMs: 80 })
  const execution = rig.open('x1', { profile })
  const controller = new AbortController()
  const response = await fetch(`${execution.baseUrl}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': execution.apiKey },
    body: JSON.stringify({ model: 'm', max_tokens: 9, stream: true, messages: [{ role: 'user', content: 'Go.' }] }),
    signal: controller.signal,
  })
  let said = ''
  const started = performance.now()
  for await (const chunk of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    said += chunk
    if (said.split('event: ping').length > 3) break
  }
  expect(performance.now() - started).toBeLessThan(10_000)
  controller.abort()
})
