import { once } from 'node:events'
import fc from 'fast-check'
import OpenAI from 'openai'
import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { says, sleep, startRig, turn, until, watched } from '../../test/support/gateway-rig.ts'
import type { Rig } from '../../test/support/gateway-rig.ts'
import { GyreError } from '../core/errors.ts'
import { engineId } from '../core/ids.ts'
import type { Engine } from '../ports/engine.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'

const TEXT = 'a fairly long answer that takes a while to say '.repeat(6)

async function ask({ baseUrl, apiKey }: ExecutionEndpoint, content = 'hi', maxTokens = 4000): Promise<string> {
  const api = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey, maxRetries: 0 })
  const messages = [{ role: 'user' as const, content }]
  const stream = await api.chat.completions.create({ model: 'm', messages, stream: true, max_tokens: maxTokens })
  let text = ''
  let finish = ''
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    finish = chunk.choices[0]?.finish_reason ?? finish
  }
  return `${text}|${finish}`
}

function sampled(rig: Rig): number {
  return rig.legs.reduce((sum, leg) => sum + leg.tokenIds.length, 0)
}

const slow = { ...says(TEXT), chunkTokens: 4, chunkDelayMs: 2 }

function failing(id: string, error: () => unknown): Engine {
  return {
    id: engineId(id),
    // eslint-disable-next-line require-yield
    async *generate() {
      await sleep(1)
      throw error()
    },
  }
}

function engineError(code: `E_ENGINE_${Uppercase<string>}`, retryable = false): GyreError {
  return new GyreError(`scripted failure ${code}`, { boundary: 'engine', code, retryable })
}

test('a generation that moves twice gives the text, the record and the seed of one that stayed', async () => {
  await using rig = await startRig()
  rig.addEngine('a', { ...slow, policyVersion: 1 })
  rig.addEngine('b', { ...slow, policyVersion: 2 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'a', 1)
  const answer = ask(execution)
  await until(() => sampled(rig) > 40)
  rig.route(execution.id, 'b', 2)
  expect(await rig.gateway.cancelInFlight(engineId('a'))).toBe(1)
  await until(() => sampled(rig) > 120)
  rig.route(execution.id, undefined, 3)
  expect(await rig.gateway.cancelInFlight(engineId('b'))).toBe(1)
  await until(() => rig.gateway.stats().held === 1)
  rig.route(execution.id, 'a', 4)
  expect(await answer).toBe(`${TEXT}|stop`)

  const [record] = rig.sink.records
  const node = record?.nodes.at(-1)
  if (node?.provenance !== 'policy') throw new Error('no policy node')
  expect(record?.moves).toBe(2)
  expect([...node.tokenIds]).toEqual([...byteCodec.encodeTurn(turn(TEXT))])
  expect(new Set(node.policyVersions)).toEqual(new Set([1, 2]))
  expect(new Set(rig.legs.map((leg) => leg.request.sampling.seed)).size).toBe(1)
  const bounds = rig.legs.map(({ request }) => request.promptIds.length + request.sampling.maxTokens)
  expect(new Set(bounds).size).toBe(1)
  expect(rig.gateway.stats()).toMatchObject({ requestsMoved: 1, harnessErrors: 0, tokensMismatched: 0, held: 0 })
})

test('a call that has no route is held until one comes, and an older route does not undo a newer one', async () => {
  await using rig = await startRig()
  const execution = rig.open('x1')
  const answer = ask(execution)
  await until(() => rig.gateway.stats().held === 1)
  rig.route(execution.id, 'late', 5)
  rig.route(execution.id, 'never', 4)
  await sleep(20)
  expect(rig.legs).toHaveLength(0)
  rig.addEngine('late', says('here'))
  expect(await answer).toBe('here|stop')
})

test('a removed engine hands its generations to the next route', async () => {
  await using rig = await startRig()
  rig.addEngine('a', slow)
  rig.addEngine('b', slow)
  const execution = rig.open('x1')
  rig.route(execution.id, 'a', 1)
  const answer = ask(execution)
  await until(() => sampled(rig) > 40)
  rig.gateway.removeEngine(engineId('a'))
  await until(() => rig.gateway.stats().held === 1)
  rig.route(execution.id, 'b', 2)
  expect(await answer).toBe(`${TEXT}|stop`)
})

test.each(['E_ENGINE_UNREACHABLE', 'E_ENGINE_NOT_ADMITTING', 'E_ENGINE_CANCELLED'] as const)(
  '%s never reaches the harness: the call goes on where the next route says',
  async (code) => {
    await using rig = await startRig()
    rig.gateway.setEngine(
      watched(
        failing('a', () => engineError(code)),
        rig.legs,
      ),
    )
    rig.addEngine('b', says('from b'))
    const execution = rig.open('x1')
    rig.route(execution.id, 'a', 1)
    const answer = ask(execution)
    await until(() => rig.legs.length > 0)
    rig.route(execution.id, 'b', 2)
    expect(await answer).toBe('from b|stop')
    expect(rig.gateway.stats()).toMatchObject({ harnessErrors: 0, requestsMoved: 1 })
  },
)

test('an engine that comes back under its name serves what waited for it', async () => {
  await using rig = await startRig({ limits: { retryPauseMs: 60_000 } })
  rig.gateway.setEngine(
    watched(
      failing('a', () => engineError('E_ENGINE_UNREACHABLE', true)),
      rig.legs,
    ),
  )
  const execution = rig.open('x1')
  rig.route(execution.id, 'a')
  const answer = ask(execution)
  await until(() => rig.legs.length > 0)
  rig.addEngine('a', says('reborn'))
  expect(await answer).toBe('reborn|stop')
})

test('an engine that does not stop when it is cancelled is left behind, and its late tokens are not heard', async () => {
  await using rig = await startRig({ limits: { cancelMs: 30 } })
  const gate = new AbortController()
  const stuck = once(gate.signal, 'abort')
  const unstoppable: Engine = {
    id: engineId('a'),
    async *generate() {
      yield { kind: 'tokens', tokenIds: [104, 105], logprobs: [-1, -1], policyVersions: [0, 0] }
      await stuck
      yield { kind: 'tokens', tokenIds: [33], logprobs: [-1], policyVersions: [0] }
    },
  }
  rig.gateway.setEngine(watched(unstoppable, rig.legs))
  rig.addEngine('b', says('hi there'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'a', 1)
  const answer = ask(execution)
  await until(() => sampled(rig) === 2)
  rig.route(execution.id, 'b', 2)
  await rig.gateway.cancelInFlight(engineId('a'))
  expect(await answer).toBe('hi there|stop')
  gate.abort()
})

test('a failure that no route can mend is an error in the stream, counted and told', async () => {
  await using rig = await startRig()
  rig.gateway.setEngine(failing('a', () => engineError('E_ENGINE_BROKEN')))
  const execution = rig.open('x1')
  rig.route(execution.id, 'a')
  await expect(ask(execution)).rejects.toThrow('scripted failure E_ENGINE_BROKEN')
  expect(rig.failures).toHaveLength(1)
  expect(await rig.gateway.closeExecution(execution.id)).toEqual({ modelCalls: 1, sampledTokens: 0, harnessErrors: 1 })
})

test('a log-prob that is no evidence masks its token and no other', async () => {
  await using rig = await startRig()
  const values = [-0.5, Number.NaN, -9999, Number.NEGATIVE_INFINITY, 0.25, 0, -12]
  rig.addEngine('e', { ...says('abcdef'), logprob: (_, position) => values[position % values.length] ?? 0 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  await ask(execution)
  const node = rig.sink.records[0]?.nodes.at(-1)
  const [leg] = rig.legs
  if (node?.provenance !== 'policy' || leg === undefined) throw new Error('no policy node')
  const start = leg.request.promptIds.length
  const expected = leg.tokenIds.map((_, i) => values[(start + i) % values.length] ?? 0)
  expect([...node.behaviorLogprobs]).toEqual(expected.map((v) => (v <= 0 && v > -9999 ? v : Number.NaN)))
})

test('the bound of a call is the least of what the harness, the execution and the context allow', async () => {
  await using rig = await startRig({ maxContext: 100 })
  rig.addEngine('e', says('x'.repeat(200)))
  const execution = rig.open('x1', { sampling: { temperature: 0.7, topP: 0.9, topK: 5, seed: 1, maxTokens: 60 } })
  rig.route(execution.id, 'e')
  expect(await ask(execution, 'a', 20)).toBe(`${'x'.repeat(20)}|length`)
  expect(await ask(execution, 'b', 90)).toBe(`${'x'.repeat(60)}|length`)
  const long = await ask(execution, 'c'.repeat(50), 90)
  const last = rig.legs.at(-1)?.request
  expect(long).toBe(`${'x'.repeat(100 - (last?.promptIds.length ?? 0))}|length`)
  expect(last?.sampling).toMatchObject({ temperature: 0.7, topP: 0.9, topK: 5 })
})

test('any chunking of the tokens and any moves give the same answer and the same record', async () => {
  const said = { ...turn('prüfung 🌀 ', ['bash', '{"command": "echo \\"ä\\""}']), thinking: 'so…' }
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 40 }), fc.array(fc.nat(60), { maxLength: 3 }), async (chunk, moves) => {
      await using rig = await startRig()
      for (const name of ['a', 'b']) rig.addEngine(name, { ...says(said), chunkTokens: chunk })
      const execution = rig.open('x1')
      rig.route(execution.id, 'a', 0)
      const answer = ask(execution)
      for (const [i, at] of [...moves].sort((x, y) => x - y).entries()) {
        await until(() => sampled(rig) >= at || rig.sink.records.length > 0)
        const [from, to] = i % 2 === 0 ? (['a', 'b'] as const) : (['b', 'a'] as const)
        rig.route(execution.id, to, i + 1)
        await rig.gateway.cancelInFlight(engineId(from))
      }
      expect(await answer).toBe(`${said.text}|tool_calls`)
      const node = rig.sink.records[0]?.nodes.at(-1)
      expect(node?.provenance === 'policy' && node.turn).toMatchObject({ text: said.text, thinking: said.thinking })
      expect([...(node?.tokenIds ?? [])]).toEqual([...byteCodec.encodeTurn(said)])
      expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
    }),
    { numRuns: 25 },
  )
})
