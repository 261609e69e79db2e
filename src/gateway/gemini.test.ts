import { ApiError, GoogleGenAI } from '@google/genai'
import type { Content, GenerateContentResponse, Part } from '@google/genai'
import { expect, test } from 'vitest'
import { says, sleep, startRig, turn, until } from '../../test/support/gateway-rig.ts'
import type { Rig } from '../../test/support/gateway-rig.ts'
import { GyreError } from '../core/errors.ts'
import { engineId } from '../core/ids.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'

const MODEL = 'gemini-x'
const CONFIG = {
  systemInstruction: 'S',
  temperature: 1,
  tools: [{ functionDeclarations: [{ name: 'ls', description: 'lists', parametersJsonSchema: { type: 'object' } }] }],
}

function client({ baseUrl, apiKey }: ExecutionEndpoint, apiVersion = 'v1beta'): GoogleGenAI {
  return new GoogleGenAI({ apiKey, apiVersion, httpOptions: { baseUrl, retryOptions: { attempts: 1 } } })
}

async function partsOf(stream: AsyncIterable<GenerateContentResponse>): Promise<Part[]> {
  const parts: Part[] = []
  for await (const response of stream) parts.push(...(response.candidates?.[0]?.content?.parts ?? []))
  return parts.filter((part) => part.text !== '')
}

async function failing(act: Promise<unknown>): Promise<ApiError> {
  const error = await act.then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(ApiError)
  return error as ApiError
}

function expectExact(rig: Rig, id: ExecutionId): void {
  const tree = rig.sink.tree(id)
  const recorded = tree.calls().map((call) => [...tree.pathTokenIds(call.node)])
  expect(recorded).toEqual(rig.legs.map((leg) => [...leg.request.promptIds, ...leg.tokenIds]))
  expect(tree.leaves()).toHaveLength(1)
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
}

test('a tool loop through the official client, streamed and not, records exactly what the engine saw', async () => {
  await using rig = await startRig()
  const first = { ...turn('two at once', ['ls', '{"b": 1, "a": 2.0}'], ['ls', '{}']), thinking: 'hm' }
  rig.addEngine('e', { ...says(first, 'done'), chunkTokens: 300 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const user: Content = { role: 'user', parts: [{ text: 'go' }] }

  const one = await partsOf(await api.models.generateContentStream({ model: MODEL, contents: [user], config: CONFIG }))
  expect(one).toEqual([
    { text: 'hm', thought: true },
    { text: 'two at once' },
    { functionCall: { id: 'call_0_0', name: 'ls', args: { b: 1, a: 2 } } },
    { functionCall: { id: 'call_0_1', name: 'ls', args: {} } },
  ])
  // A client that drops thoughts, re-keys the arguments and knows no ids.
  const contents: Content[] = [
    user,
    {
      role: 'model',
      parts: [
        { text: 'two at once' },
        { functionCall: { name: 'ls', args: { a: 2, b: 1 } }, thoughtSignature: 'c2tpcA==' },
        { functionCall: { name: 'ls', args: {} } },
      ],
    },
    {
      role: 'user',
      parts: one.slice(2).map(() => ({ functionResponse: { name: 'ls', response: { output: 'a.txt' } } })),
    },
  ]

  const two = await api.models.generateContent({ model: MODEL, contents, config: CONFIG })
  expect(two.text).toBe('done')
  expect(two.candidates?.[0]?.finishReason).toBe('STOP')
  expect(two.modelVersion).toBe(MODEL)
  expect(two.usageMetadata).toMatchObject({
    promptTokenCount: rig.legs[1]?.request.promptIds.length,
    candidatesTokenCount: rig.legs[1]?.tokenIds.length,
  })
  expectExact(rig, execution.id)
})

test('the chat of the official client keeps every frame, and every turn is known again', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 5 } })
  const call = { ...turn('let me see', ['ls', '{"path": "."}']), thinking: 'a long thought' }
  rig.addEngine('e', { ...says(call, 'nothing there', 'bye'), chunkTokens: 3, chunkDelayMs: 12 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const chat = client(execution).chats.create({ model: MODEL, config: CONFIG })

  const one = await partsOf(await chat.sendMessageStream({ message: 'look' }))
  const { id, name } = one.at(-1)?.functionCall ?? {}
  expect(name).toBe('ls')
  const response = { functionResponse: { id: String(id), name: 'ls', response: { output: '' } } }
  await partsOf(await chat.sendMessageStream({ message: [response] }))
  expect((await chat.sendMessage({ message: 'thanks' })).text).toBe('bye')
  expect(chat.getHistory(true).length).toBeGreaterThan(6)
  expectExact(rig, execution.id)
})

test('a count is the size of the prompt that would be sent', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('hello'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const contents: Content[] = [{ role: 'user', parts: [{ text: 'how long is this' }] }]
  const { usageMetadata } = await api.models.generateContent({ model: MODEL, contents })
  expect((await api.models.countTokens({ model: MODEL, contents })).totalTokens).toBe(usageMetadata?.promptTokenCount)

  const count = async (body: object): Promise<unknown> => {
    const url = `${execution.baseUrl}/v1beta/models/${MODEL}:countTokens?key=${execution.apiKey}`
    return (await fetch(url, { method: 'POST', body: JSON.stringify(body) })).json()
  }
  const whole = { model: `models/${MODEL}`, contents, systemInstruction: { parts: [{ text: 'S' }] } }
  const [bare, full] = [await count({ contents }), await count({ generateContentRequest: whole })]
  expect(bare).toEqual({ totalTokens: usageMetadata?.promptTokenCount })
  expect((full as { totalTokens: number }).totalTokens).toBeGreaterThan(usageMetadata?.promptTokenCount ?? 0)
})

test('a waiting client gets frames that say nothing, and the whole answer', async () => {
  await using rig = await startRig({ limits: { keepAliveMs: 15 } })
  rig.addEngine('e', says('late'))
  const execution = rig.open('x1')
  const request = { model: MODEL, contents: 'hi' }
  const streamed = client(execution).models.generateContentStream(request)
  await until(() => rig.gateway.stats().held === 1)
  setTimeout(() => rig.route(execution.id, 'e'), 60)
  const responses: GenerateContentResponse[] = []
  for await (const response of await streamed) responses.push(response)
  expect(responses.length).toBeGreaterThan(3)
  expect(responses.map(({ text }) => text ?? '').join('')).toBe('late')
  expect(responses.map((response) => response.candidates?.[0]?.finishReason).filter(Boolean)).toEqual(['STOP'])

  rig.route(execution.id, undefined, 2)
  const whole = client(execution).models.generateContent({ ...request, contents: 'again' })
  await until(() => rig.gateway.stats().held === 1)
  await sleep(40)
  rig.route(execution.id, 'e', 3)
  expect((await whole).text).toBe('late')
})

test('an answer that was cut says so', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('x'.repeat(50)))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const config = { maxOutputTokens: 7 }
  const cut = await client(execution, 'v1').models.generateContent({ model: MODEL, contents: 'hi', config })
  expect(cut.text).toBe('x'.repeat(7))
  expect(cut.candidates?.[0]?.finishReason).toBe('MAX_TOKENS')
})

test('refusals reach the client with their status and words', async () => {
  await using rig = await startRig({ maxContext: 60 })
  const execution = rig.open('x1')
  const { models } = client(execution)
  const inlineData = { mimeType: 'image/png', data: 'AAAA' }
  const image = await failing(models.generateContent({ model: MODEL, contents: [{ inlineData }] }))
  expect(image.status).toBe(400)
  expect(JSON.parse(image.message)).toMatchObject({ error: { code: 400, status: 'INVALID_ARGUMENT' } })
  expect(image.message).toContain('content of type \\"inlineData\\" is not supported')
  const long = await failing(models.generateContentStream({ model: MODEL, contents: 'x'.repeat(90) }))
  expect(long.message).toMatch(/prompt is too long: \d+ tokens > 59 maximum/)
  const stranger = client({ ...execution, apiKey: 'other' })
  const unknown = await failing(stranger.models.countTokens({ model: MODEL, contents: 'x' }))
  expect(JSON.parse(unknown.message)).toMatchObject({ error: { code: 401, status: 'UNAUTHENTICATED' } })
  const nowhere = await failing(models.embedContent({ model: MODEL, contents: 'x' }))
  expect(nowhere.status).toBe(404)
  expect(rig.gateway.stats().harnessErrors).toBe(0)
})

test('the models are listed, and one is described', async () => {
  await using rig = await startRig()
  const execution = rig.open('x1')
  const names: unknown[] = []
  for await (const model of await client(execution).models.list()) names.push(model.name)
  expect(names).toEqual(['models/policy'])
  const model = await client(execution).models.get({ model: 'anything' })
  expect(model).toMatchObject({ name: 'models/policy', supportedActions: ['generateContent', 'countTokens'] })
})

test('a stream that cannot be finished ends in an error of the dialect', async () => {
  await using rig = await startRig()
  const id = engineId('broken')
  rig.gateway.setEngine({
    id,
    async *generate() {
      yield { kind: 'tokens', tokenIds: [104, 105], logprobs: [0, 0], policyVersions: [0, 0] }
      throw new GyreError('the logits are not finite', { boundary: 'engine', code: 'E_ENGINE_NONFINITE' })
    },
  })
  const execution = rig.open('x1')
  rig.route(execution.id, id)
  const stream = await client(execution).models.generateContentStream({ model: MODEL, contents: 'hi' })
  const error = await failing(partsOf(stream))
  expect(error.status).toBe(500)
  expect(error.message).toContain('"status":"INTERNAL"')
  expect(rig.gateway.stats().harnessErrors).toBe(1)
})
