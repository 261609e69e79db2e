import { describe, expect, test } from 'vitest'
import { connectedSglang, connectedTinker, connectedVllm } from '../../../../test/support/servers/connected.ts'
import { TOY_VOCAB } from '../../../../test/support/servers/toy-model.ts'
import { collectEvents } from '../../../ports/engine.contract.ts'

const PROMPT = [3, 1, 4, 15]

describe('what the start-up checks find', () => {
  test('SGLang', async () => {
    for (const shape of ['cumulative', 'delta', 'mixed'] as const) {
      await using rig = await connectedSglang({ shape, weightVersion: 'v12' })
      expect(rig.engine.capabilities).toEqual({
        route: '/generate',
        stream: shape,
        logprobs: 'raw',
        seeding: 'positional',
        maxContext: 512,
        weightLabel: 'v12',
        reportsVersions: true,
      })
    }
  })

  test('vLLM, with the token route, without it, and without a list of routes', async () => {
    await using tokens = await connectedVllm({ weightVersion: 'v1', listsRoutes: false })
    const found = { logprobs: 'raw', seeding: 'per-call', stream: 'delta', maxContext: 512 }
    expect(tokens.engine.capabilities).toMatchObject({ ...found, route: '/inference/v1/generate', weightLabel: 'v1' })
    for (const listsRoutes of [true, false]) {
      await using plain = await connectedVllm({ isScaleOut: false, listsRoutes })
      expect(plain.engine.capabilities).toMatchObject({ ...found, route: '/v1/completions', reportsVersions: false })
    }
  })

  test('Tinker', async () => {
    await using rig = await connectedTinker()
    expect(rig.engine.capabilities).toMatchObject({ route: '/api/v1/asample', stream: 'slices', logprobs: 'raw' })
  })

  test('the smaller of the contexts counts', async () => {
    await using short = await connectedSglang({ contextLength: 300 }, { maxContext: 400 })
    expect(short.engine.capabilities.maxContext).toBe(300)
    await using told = await connectedSglang({ contextLength: 300 }, { maxContext: 100 })
    expect(told.engine.capabilities.maxContext).toBe(100)
  })
})

describe('a server is refused, with what is missing and how it comes, that', () => {
  test.each([
    ['has no /generate', () => connectedSglang({ hasGenerate: false }), /no route \/generate/],
    ['strips ids', () => connectedSglang({ stripsIds: true }), /0 token ids came.*router/],
    ['gives no log-probs', () => connectedSglang({ logprobs: 'none' }), /8 of 8 tokens came without.*return_logprob/],
    ['scales log-probs', () => connectedSglang({ logprobs: 'scaled' }), /SGLANG_RETURN_ORIGINAL_LOGPROB=1/],
    ['cuts log-probs', () => connectedSglang({ logprobs: 'truncated' }), /log-probs/],
    ['takes the stop token away', () => connectedSglang({ trimsStop: true }), /stop token.*no_stop_trim/],
    ['samples ids we do not have', () => connectedSglang({}, { vocabSize: 4 }), /the tokenizer has 4/],
    ['has no room', () => connectedSglang({ contextLength: 32 }), /context is 32 tokens/],
    [
      'gives no ids by any route',
      () => connectedVllm({ isScaleOut: false, returnsTokenIds: false }),
      /--enable-scale-out/,
    ],
    ['gives no log-probs (vLLM)', () => connectedVllm({ logprobs: 'none' }), /--max-logprobs/],
    ['scales log-probs (vLLM)', () => connectedVllm({ logprobs: 'scaled' }), /--logprobs-mode raw_logprobs/],
    ['cuts log-probs (vLLM)', () => connectedVllm({ logprobs: 'truncated' }), /--logprobs-mode raw_logprobs/],
    ['takes the stop token away (vLLM)', () => connectedVllm({ trimsStop: true }), /stop token out of the answer/],
    ['gives no log-probs (Tinker)', () => connectedTinker({ logprobs: 'none' }), /without a log-prob/],
    ['does not say its context', () => connectedTinker({ isContextSaid: false }), /Give maxContext/],
    ['has not the model', () => connectedTinker({}, { baseModel: 'other' }), /no model other.*toy\/model/],
  ])('%s', async (_, connect, words) => {
    const error = await connect().then(
      () => undefined,
      (thrown: unknown) => thrown,
    )
    expect(error).toMatchObject({ code: 'E_ENGINE_PROBE', retryable: false, boundary: 'engine' })
    expect(String(error)).toMatch(words)
  })
})

test('a route that does not know the model falls to the next, and the reason stays', async () => {
  const error = await connectedVllm({}, { model: 'absent' } as object).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'E_ENGINE_PROBE', cause: { code: 'E_ENGINE_REQUEST' } })
})

test('processed log-probs are taken only where they are the raw ones, once they are accepted', async () => {
  for (const logprobs of ['scaled', 'truncated'] as const) {
    await using rig = await connectedVllm({ logprobs }, { acceptProcessedLogprobs: true })
    expect(rig.engine.capabilities.logprobs).toBe(logprobs)
    const plain = await collectEvents(rig.engine, PROMPT)
    expect(plain.logprobs.every(Number.isFinite)).toBe(true)
    for (const sampling of [{ temperature: 0.7 }, { topP: 0.9 }, { topK: 5 }]) {
      const { tokenIds, logprobs: hidden } = await collectEvents(rig.engine, PROMPT, sampling)
      expect(tokenIds).toHaveLength(16)
      expect(hidden.every(Number.isNaN)).toBe(true)
    }
  }
})

test('prompts that no server could take do not reach one', async () => {
  await using rig = await connectedSglang()
  for (const [prompt, sampling] of [
    [[], {}],
    [[TOY_VOCAB], {}],
    [[-1], {}],
    [PROMPT, { maxTokens: 0 }],
  ] as const) {
    const { error } = await collectEvents(rig.engine, prompt, sampling)
    expect(error).toMatchObject({ code: 'E_ENGINE_REQUEST', retryable: false })
  }
  expect(rig.server.calls).toEqual([])
})

test('a server that finds a prompt too long says so as we would', async () => {
  await using sglang = await connectedSglang({ contextLength: 100 })
  await using vllm = await connectedVllm({ maxModelLen: 100 })
  for (const { server, engine } of [sglang, vllm]) {
    // The server was restarted with less.
    Object.assign(server.options, { contextLength: 70, maxModelLen: 70 })
    const { error } = await collectEvents(engine, Array(80).fill(5))
    expect(error).toMatchObject({ code: 'E_ENGINE_OVERLONG', retryable: false })
  }
})
