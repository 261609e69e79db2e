import { expect, test } from 'vitest'
import { connectedTinker } from '../../../../test/support/servers/connected.ts'
import type { PollAnswer } from '../../../../test/support/servers/tinker-server.ts'
import { collectEvents } from '../../../ports/engine.contract.ts'

const PROMPT = [3, 1, 4, 15]

async function reference() {
  await using rig = await connectedTinker()
  return await collectEvents(rig.engine, PROMPT)
}

test('a long answer comes in slices, each from the tokens of those before it', async () => {
  await using rig = await connectedTinker()
  const { tokenIds, end } = await collectEvents(rig.engine, PROMPT, { maxTokens: 10 })
  const asked = rig.server.calls.filter(({ path }) => path.endsWith('asample')).map(({ body }) => body)
  const prompts = asked.map(({ prompt }) => (prompt as { chunks: { tokens: number[] }[] }).chunks[0]?.tokens)
  expect(prompts).toEqual([0, 4, 8].map((n) => [...PROMPT, ...tokenIds.slice(0, n)]))
  const params = asked.map(({ sampling_params: given }) => given as { max_tokens: number; seed: number })
  expect(params.map((given) => given.max_tokens)).toEqual([4, 4, 2])
  expect(new Set(params.map(({ seed }) => seed)).size).toBe(3)
  expect(new Set(asked.map((body) => body['seq_id'])).size).toBe(3)
  expect(end).toEqual({ kind: 'end', finishReason: 'length', cachedTokens: 4 })
})

test.each([
  ['pending', 'pending'],
  ['try-again', 'pending', 'metadata'],
  ['busy', 'broken', 'try-again'],
] as const)('polls that answer %s are asked again', async (...polls: readonly PollAnswer[]) => {
  await using rig = await connectedTinker({ polls })
  expect(await collectEvents(rig.engine, PROMPT)).toEqual(await reference())
})

test('a result that the server lost is sampled again, but not for ever', async () => {
  await using rig = await connectedTinker({ polls: ['lost'] })
  const { error, tokenIds } = await collectEvents(rig.engine, PROMPT)
  expect(error).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retryable: true })
  expect(tokenIds).toEqual([])
  expect(rig.server.calls.filter(({ path }) => path.endsWith('asample'))).toHaveLength(3)
})

test('a session that the server forgot is opened again', async () => {
  await using rig = await connectedTinker()
  rig.server.sessions.clear()
  expect(await collectEvents(rig.engine, PROMPT)).toEqual(await reference())
  expect(rig.server.sessions.size).toBe(1)
})

test.each([
  ['a worker that crashed', { kind: 'error-event', afterTokens: 0 }, 'E_ENGINE_UNREACHABLE', true],
  ['a connection that is reset', { kind: 'die', afterTokens: 0 }, 'E_ENGINE_UNREACHABLE', true],
  ['429 on asample', { kind: 'status', status: 429, body: {} }, 'E_ENGINE_NOT_ADMITTING', true],
  ['400 on asample', { kind: 'status', status: 400, body: { detail: 'no' } }, 'E_ENGINE_REQUEST', false],
] as const)(
  '%s ends the generation with a typed error, and the slices before stay',
  async (_, fault, code, retryable) => {
    await using rig = await connectedTinker({ fault: (call) => (call === 2 ? fault : undefined) })
    const { error, tokenIds } = await collectEvents(rig.engine, PROMPT)
    expect(error).toMatchObject({ code, retryable })
    expect(tokenIds).toEqual((await reference()).tokenIds.slice(0, 8))
  },
)

test('a result that does not come in time is a timeout', async () => {
  await using rig = await connectedTinker({ resultDelayMs: 60_000 }, { idleTimeoutMs: 150 })
  const { error } = await collectEvents(rig.engine, PROMPT)
  expect(error).toMatchObject({ code: 'E_ENGINE_TIMEOUT', retryable: true })
  // Nobody waits for the server to hear of it.
  await expect.poll(() => rig.server.aborted).toHaveLength(1)
})

test.each([true, false])('a cancelled generation cancels its future (server knows how: %s)', async (cancels) => {
  await using rig = await connectedTinker({ resultDelayMs: 50, cancels })
  const controller = new AbortController()
  const startedAt = Date.now()
  const cut = await collectEvents(
    rig.engine,
    PROMPT,
    { maxTokens: 400 },
    { signal: controller.signal, onTokens: () => controller.abort() },
  )
  expect(cut.error).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
  expect(cut.tokenIds).toHaveLength(4)
  expect(Date.now() - startedAt).toBeLessThan(5000)
})

test('a cancellation while a slice is under way tells the server which', async () => {
  await using rig = await connectedTinker({ resultDelayMs: 30_000 })
  const controller = new AbortController()
  const cutting = collectEvents(rig.engine, PROMPT, {}, { signal: controller.signal })
  while (rig.server.running() === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  controller.abort()
  expect((await cutting).error).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
  expect(rig.server.aborted).toHaveLength(1)
})

test('the key must be one of the service, and the version is in the path of the checkpoint', async () => {
  await expect(connectedTinker({}, { apiKey: 'sk-123' })).rejects.toMatchObject({ code: 'E_ENGINE_OPTION' })
  await expect(connectedTinker({}, { sliceTokens: 0 })).rejects.toMatchObject({ code: 'E_ENGINE_OPTION' })
  await using rig = await connectedTinker({}, { modelPath: 'tinker://run/sampler_weights/step-8' })
  const { policyVersions } = await collectEvents(rig.engine, PROMPT, { maxTokens: 2 })
  expect(policyVersions).toEqual([8, 8])
})

test('the session is kept alive until the engine is closed', async () => {
  await using rig = await connectedTinker({}, { heartbeatMs: 20 })
  await expect.poll(() => rig.server.heartbeats).toBeGreaterThan(2)
  await rig.engine.close()
  const { heartbeats } = rig.server
  await new Promise((resolve) => setTimeout(resolve, 80))
  expect(rig.server.heartbeats).toBeLessThanOrEqual(heartbeats + 1)
})
