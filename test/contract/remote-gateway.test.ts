import OpenAI from 'openai'
import { expect, test } from 'vitest'
import { connectSglang } from '../../src/adapters/engine/remote/sglang.ts'
import { connectVllm } from '../../src/adapters/engine/remote/vllm.ts'
import { scriptedTurns } from '../../src/adapters/engine/scripted/scripted.ts'
import { engineId } from '../../src/core/ids.ts'
import type { ExecutionEndpoint } from '../../src/ports/forwarding.ts'
import { byteCodec } from '../support/byte-codec.ts'
import { startRig, turn, until, watched } from '../support/gateway-rig.ts'
import { startSglangServer } from '../support/servers/sglang-server.ts'
import type { ToyScript } from '../support/servers/toy-model.ts'
import { startVllmServer } from '../support/servers/vllm-server.ts'

const TEXT = 'a fairly long answer that takes a while to say, größer als 词 '.repeat(4)
const OPENING = byteCodec.encodeGenerationPrompt()[0] as number

/** Speaks the text after an opened turn; anything else is left to the toy model. */
const script: ToyScript = (promptIds) => {
  if (!promptIds.includes(OPENING)) return undefined
  const said = scriptedTurns(byteCodec, [turn(TEXT)])
  return said(promptIds, 'x' as never, 'r')
}

async function ask({ baseUrl, apiKey }: ExecutionEndpoint): Promise<string> {
  const api = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey, maxRetries: 0 })
  const messages = [{ role: 'user' as const, content: 'hi' }]
  const stream = await api.chat.completions.create({ model: 'm', messages, stream: true, max_tokens: 4000 })
  let text = ''
  let finish = ''
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    finish = chunk.choices[0]?.finish_reason ?? finish
  }
  return `${text}|${finish}`
}

test('one remote engine dies in mid-stream, another of another kind goes on, and the harness sees a whole answer', async () => {
  await using rig = await startRig()
  const options = { script, pieceDelayMs: 2, contextLength: 4096, maxModelLen: 4096 }
  const sglang = await startSglangServer({ ...options, logprobs: 'raw', weightVersion: 'v4' })
  const vllm = await startVllmServer({ ...options, weightVersion: 'v5' })
  const common = { vocabSize: byteCodec.vocabSize }
  const a = await connectSglang({ id: engineId('a'), baseUrl: sglang.baseUrl, ...common })
  const b = await connectVllm({ id: engineId('b'), baseUrl: vllm.baseUrl, ...common })
  try {
    rig.gateway.setEngine(watched(a, rig.legs))
    rig.gateway.setEngine(watched(b, rig.legs))
    const execution = rig.open('x1')
    rig.route(execution.id, 'a', 1)
    const answer = ask(execution)
    const sampled = (): number => rig.legs.reduce((sum, leg) => sum + leg.tokenIds.length, 0)
    await until(() => sampled() > 40, 10_000)
    await sglang.kill()
    rig.route(execution.id, 'b', 2)
    expect(await answer).toBe(`${TEXT}|stop`)

    const node = rig.sink.records[0]?.nodes.at(-1)
    if (node?.provenance !== 'policy') throw new Error('no policy node')
    expect([...node.tokenIds]).toEqual([...byteCodec.encodeTurn(turn(TEXT))])
    expect(new Set(node.policyVersions)).toEqual(new Set([4, 5]))
    expect([...node.behaviorLogprobs].every((logprob) => logprob === -0.5)).toBe(true)
    expect(rig.gateway.stats()).toMatchObject({ harnessErrors: 0, tokensMismatched: 0 })
  } finally {
    await Promise.all([a.close(), b.close()])
    await Promise.all([sglang.close(), vllm.close()])
  }
})

test('versions that a server tells at the end are those of the record', async () => {
  await using rig = await startRig()
  const changes = { weightVersion: 'v7', changesAt: { token: 30, version: 'v8' } }
  const server = await startVllmServer({ script, maxModelLen: 4096, ...changes })
  const engine = await connectVllm({ id: engineId('a'), baseUrl: server.baseUrl, vocabSize: byteCodec.vocabSize })
  try {
    rig.gateway.setEngine(engine)
    const execution = rig.open('x1')
    rig.route(execution.id, 'a', 1)
    expect(await ask(execution)).toBe(`${TEXT}|stop`)
    const node = rig.sink.records[0]?.nodes.at(-1)
    if (node?.provenance !== 'policy') throw new Error('no policy node')
    expect([...node.policyVersions]).toEqual(Array.from(node.tokenIds, (_, i) => (i < 30 ? 7 : 8)))
  } finally {
    await engine.close()
    await server.close()
  }
})
