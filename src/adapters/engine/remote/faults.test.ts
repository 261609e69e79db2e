import { describe, expect, test } from 'vitest'
import type { Fault } from '../../../../test/support/servers/base-server.ts'
import { STREAMING, connectedSglang, connectedVllm } from '../../../../test/support/servers/connected.ts'
import { collectEvents, generateRequest } from '../../../ports/engine.contract.ts'
import { connectSglang } from './sglang.ts'
import { engineId } from '../../../core/ids.ts'

const PROMPT = [3, 1, 4, 15]
const once = (fault: Fault) => ({ fault: (call: number) => (call === 0 ? fault : undefined) })

describe.each(STREAMING)('%s', (name, start) => {
  const broken = async (fault: Fault, options = {}) => {
    await using rig = await start(once(fault), options)
    const first = await collectEvents(rig.engine, PROMPT)
    const second = await collectEvents(rig.engine, PROMPT)
    expect(second.error).toBeUndefined()
    for (let i = 0; rig.server.running() > 0 && i < 200; i++) await new Promise((r) => setTimeout(r, 5))
    expect(rig.server.running()).toBe(0)
    return { first, second }
  }

  test.each([
    ['die', 'E_ENGINE_UNREACHABLE'],
    ['abort', 'E_ENGINE_UNFINISHED'],
    ['error-event', 'E_ENGINE_UNREACHABLE'],
    ['stall', 'E_ENGINE_TIMEOUT'],
  ] as const)('a server that does "%s" in mid-stream is transient, and what came stays', async (kind, code) => {
    const { first, second } = await broken({ kind, afterTokens: 5 }, { idleTimeoutMs: 200 })
    expect(first.error).toMatchObject({ code, retryable: true })
    expect(first.end).toBeUndefined()
    // A reset may take what had not been read with it.
    const length = kind === 'die' ? first.tokenIds.length : 5
    expect(length).toBeGreaterThan(0)
    expect(first.tokenIds).toEqual(second.tokenIds.slice(0, length))
    expect(first.logprobs).toEqual(second.logprobs.slice(0, length))
  })

  test.each([
    [429, 'E_ENGINE_NOT_ADMITTING', true],
    [503, 'E_ENGINE_NOT_ADMITTING', true],
    [500, 'E_ENGINE_UNREACHABLE', true],
    [502, 'E_ENGINE_UNREACHABLE', true],
    [400, 'E_ENGINE_REQUEST', false],
    [403, 'E_ENGINE_UNAUTHORIZED', false],
  ] as const)('status %i is %s', async (status, code, retryable) => {
    const body = { error: 'The model is currently scaling. Please try again later.' }
    const { first } = await broken({ kind: 'status', status, body })
    expect(first.error).toMatchObject({ code, retryable })
    expect(String(first.error)).toContain('currently scaling')
  })

  test('a log-prob that means "no value" is no evidence, and the token stays', async () => {
    const { first, second } = await broken({ kind: 'sentinel', atToken: 3 })
    expect(first.tokenIds).toEqual(second.tokenIds)
    expect(first.logprobs.map(Number.isNaN)).toEqual(first.tokenIds.map((_, i) => i === 3))
  })

  test('a frame that comes twice counts once', async () => {
    const { first, second } = await broken({ kind: 'duplicate', atToken: 4 })
    expect(first).toEqual(second)
  })

  test('a frame that is lost is noticed, or told again by the next', async () => {
    const { first, second } = await broken({ kind: 'lose', atToken: 4 })
    if (name.endsWith('cumulative')) expect(first).toEqual(second)
    else {
      // The log-probs of the mixed stream still have the ids.
      const isWhole = name.endsWith('mixed')
      expect(first.tokenIds).toEqual(isWhole ? second.tokenIds : second.tokenIds.slice(0, 4))
      if (!isWhole) expect(first.error).toMatchObject({ code: 'E_ENGINE_PROTOCOL', retryable: true })
    }
  })

  test.each(['no-done', 'late-frame', 'garbage'] as const)(
    '"%s" after the last token changes nothing',
    async (kind) => {
      const { first, second } = await broken({ kind })
      expect({ ...first, end: undefined }).toEqual({ ...second, end: undefined })
      expect(first.end?.finishReason).toBe('length')
    },
  )

  test('a server that is slower than its idle limit in sum, but never silent for so long, is waited for', async () => {
    await using rig = await start({ pieceDelayMs: 40 }, { idleTimeoutMs: 300 })
    const { tokenIds, error } = await collectEvents(rig.engine, PROMPT)
    expect(error).toBeUndefined()
    expect(tokenIds).toHaveLength(16)
  })

  test('connections are used again', async () => {
    await using rig = await start()
    const before = rig.server.connections
    for (let i = 0; i < 10; i++) await collectEvents(rig.engine, PROMPT, { maxTokens: 2 })
    expect(rig.server.connections - before).toBeLessThanOrEqual(1)
  })

  test('the server is told of a cancellation by an id of its own', async () => {
    await using rig = await start({ pieceDelayMs: 2 })
    const ids = ['a', 'b'].map(async () => {
      const controller = new AbortController()
      const { error } = await collectEvents(
        rig.engine,
        PROMPT,
        { maxTokens: 400 },
        { signal: controller.signal, onTokens: () => controller.abort() },
      )
      expect(error).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
    })
    await Promise.all(ids)
    if (!name.endsWith('completions')) {
      expect(new Set(rig.server.aborted).size).toBe(2)
      expect(new Set(rig.server.aborted.map((id) => id.length)).size).toBe(1)
    }
    for (let i = 0; rig.server.running() > 0 && i < 200; i++) await new Promise((r) => setTimeout(r, 5))
    expect(rig.server.running()).toBe(0)
  })

  test('closing the engine ends what runs on it, so that it goes on elsewhere', async () => {
    await using rig = await start({ pieceDelayMs: 2 })
    const cut = await collectEvents(rig.engine, PROMPT, { maxTokens: 400 }, { onTokens: () => void rig.engine.close() })
    expect(cut.error).toMatchObject({ code: 'E_ENGINE_CLOSED', retryable: true })
    expect((await collectEvents(rig.engine, PROMPT)).error).toMatchObject({ code: 'E_ENGINE_CLOSED' })
  })

  test('a key and headers of ours go with every request', async () => {
    await using rig = await start({ apiKey: 'secret' }, { apiKey: 'secret', headers: { 'x-team': 'rl' } })
    await collectEvents(rig.engine, PROMPT)
    expect(rig.server.calls.map(({ headers }) => headers['x-team'])).toEqual(['rl'])
    await expect(start({ apiKey: 'secret' }, { apiKey: 'wrong' })).rejects.toMatchObject({
      code: 'E_ENGINE_UNAUTHORIZED',
    })
  })
})

test('weights that change in mid-stream are stamped per token: at once by SGLang, at the end by vLLM', async () => {
  const changes = { weightVersion: 'v7', changesAt: { token: 6, version: 'v8' } }
  const expected = [...Array<number>(6).fill(7), ...Array<number>(10).fill(8)]
  await using sglang = await connectedSglang(changes)
  const told = await collectEvents(sglang.engine, PROMPT)
  expect(told.policyVersions).toEqual(expected)
  expect(told.end?.policyVersions).toBeUndefined()
  await using vllm = await connectedVllm(changes)
  const corrected = await collectEvents(vllm.engine, PROMPT)
  expect(corrected.end?.policyVersions).toEqual(expected)
  // What the server said last is believed, until the last chunk says otherwise.
  const next = await collectEvents(vllm.engine, PROMPT, { maxTokens: 3 })
  expect([next.policyVersions, next.end?.policyVersions]).toEqual([
    [8, 8, 7],
    [7, 7, 7],
  ])
})

test('labels are read as told', async () => {
  const versions = new Map([['blue', 41]])
  await using rig = await connectedSglang({ weightVersion: 'blue' }, { versionOf: (label) => versions.get(label) })
  expect((await collectEvents(rig.engine, PROMPT, { maxTokens: 2 })).policyVersions).toEqual([41, 41])
  await using plain = await connectedSglang({ weightVersion: 'default' }, { policyVersion: 5 })
  expect((await collectEvents(plain.engine, PROMPT, { maxTokens: 2 })).policyVersions).toEqual([5, 5])
})

test('draws that restart with every call get another seed where a generation is resumed', async () => {
  await using positional = await connectedSglang()
  expect(positional.engine.capabilities.seeding).toBe('positional')
  const whole = await collectEvents(positional.engine, PROMPT)
  const resumed = [...PROMPT, ...whole.tokenIds.slice(0, 6)]
  const rest = await collectEvents(positional.engine, resumed, { maxTokens: 10 })
  expect(rest.tokenIds).toEqual(whole.tokenIds.slice(6))
  await using perCall = await connectedVllm()
  expect(perCall.engine.capabilities.seeding).toBe('per-call')
  await collectEvents(perCall.engine, PROMPT)
  await collectEvents(perCall.engine, resumed)
  const seeds = perCall.server.calls.map(({ body }) => (body['sampling_params'] as { seed: number }).seed)
  expect(new Set(seeds).size).toBe(2)
})

test('a server that is not there is unreachable', async () => {
  const connecting = connectSglang({ id: engineId('x'), baseUrl: 'http://127.0.0.1:1' })
  await expect(connecting).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retryable: true })
  await expect(connectSglang({ id: engineId('x'), baseUrl: 'nonsense' })).rejects.toMatchObject({
    code: 'E_ENGINE_OPTION',
  })
})

test('a consumer that takes its time is no silence of the server', async () => {
  await using rig = await connectedSglang({ pieceDelayMs: 1 }, { idleTimeoutMs: 100 })
  let isFirst = true
  const tokenIds: number[] = []
  const request = generateRequest(PROMPT, { maxTokens: 100 })
  for await (const event of rig.engine.generate(request, new AbortController().signal)) {
    if (isFirst) await new Promise((resolve) => setTimeout(resolve, 350))
    isFirst = false
    if (event.kind === 'tokens') tokenIds.push(...event.tokenIds)
  }
  expect(tokenIds).toHaveLength(100)
})

test('a token that the tokenizer does not have goes nowhere', async () => {
  const script = (ids: Int32Array): number[] | undefined => (ids[0] === PROMPT[0] ? [5, 6, 9999, 7] : undefined)
  await using rig = await connectedVllm({ script })
  const { tokenIds, error } = await collectEvents(rig.engine, PROMPT)
  expect(tokenIds).toEqual([5, 6])
  expect(error).toMatchObject({ code: 'E_ENGINE_PROTOCOL' })
})
