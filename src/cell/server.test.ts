import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { request as httpRequest } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { BigramEngine } from '../../test/support/bigram-engine.ts'
import type { BigramOptions } from '../../test/support/bigram-engine.ts'
import { GyreError } from '../core/errors.ts'
import { cellId } from '../core/ids.ts'
import { ADAM, CROSS_ENTROPY, collect, demonstration, generation, tokensOf } from '../ports/cell.contract.ts'
import type { CellEngine } from '../ports/cell.ts'
import type { GenerateEvent } from '../ports/engine.ts'
import { CellConnection } from './connection.ts'
import { Deadline } from './deadline.ts'
import { decodeEvent, encodeGenerate } from './generate-codec.ts'
import { serveCell } from './server.ts'
import type { ServeCellOptions } from './server.ts'
import { encodeMicroStep } from './training-codec.ts'

const TOKEN = 'a-token-of-this-test'
const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

interface Served {
  readonly address: string
  readonly connection: CellConnection
}

async function serve(engine: CellEngine, options: Partial<ServeCellOptions> = {}): Promise<Served> {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-cell-'))
  cleanups.push(() => rmSync(folder, { recursive: true }))
  const server = await serveCell({
    engine,
    cellId: cellId('cell-0'),
    slots: 4,
    address: join(folder, 's'),
    token: TOKEN,
    ...options,
  })
  cleanups.push(() => server.close())
  const connection = new CellConnection(server.address, TOKEN)
  cleanups.push(() => connection.close())
  return { address: server.address, connection }
}
const bigram = (options: Partial<BigramOptions> = {}): BigramEngine => new BigramEngine({ vocabSize: 8, ...options })
const within = (ms: number): Deadline => new Deadline('call', ms)
const command = (epoch: number, ms = 5000): { deadline: Deadline; epoch: number } => ({ deadline: within(ms), epoch })

interface Raw {
  readonly status: number
  readonly body: string
}
/** A request from a program that knows nothing of our client. */
function raw(
  socketPath: string,
  method: string,
  path: string,
  headers: Record<string, string>,
  body = '',
): Promise<Raw> {
  return new Promise((resolve, reject) => {
    const call = httpRequest({ socketPath, method, path, headers }, (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk: string) => (text += chunk))
      response.on('end', () => resolve({ status: response.statusCode ?? 0, body: text }))
    })
    call.on('error', reject)
    call.end(body)
  })
}
const AUTHORIZED = { authorization: `Bearer ${TOKEN}`, 'x-gyre-deadline-ms': '5000', 'x-gyre-epoch': '1' }

test('the socket is for its owner alone', async () => {
  const { address } = await serve(bigram())
  expect(statSync(address).mode & 0o777).toBe(0o600)
})

test('health answers without a token, every other verb asks for it', async () => {
  const { address } = await serve(bigram())
  const health = await raw(address, 'GET', '/v1/health', {})
  expect(health.status).toBe(200)
  expect(JSON.parse(health.body)).toEqual({
    protocolVersion: 1,
    cellId: 'cell-0',
    mode: 'training',
    epoch: 0,
    policyVersion: 0,
    running: 0,
  })
  for (const headers of [{}, { authorization: 'Bearer wrong' }, { authorization: `Bearer ${TOKEN.slice(1)}x` }]) {
    const refused = await raw(address, 'GET', '/v1/hello', { ...headers, 'x-gyre-deadline-ms': '5000' })
    expect(refused.status).toBe(401)
    expect(refused.body).toContain('E_CELL_UNAUTHORIZED')
  }
})

test.each([
  ['an unknown verb', 'GET', '/v1/nothing', {}, '', 404, 'E_CELL_UNKNOWN_VERB'],
  ['a wrong method', 'GET', '/v1/enter-training', {}, '', 404, 'E_CELL_UNKNOWN_VERB'],
  ['another protocol version', 'GET', '/v2/hello', {}, '', 404, 'E_CELL_PROTOCOL_VERSION'],
  ['no deadline', 'GET', '/v1/hello', { 'x-gyre-deadline-ms': '' }, '', 400, 'E_CELL_REQUEST'],
  ['a negative epoch', 'POST', '/v1/zero-gradients', { 'x-gyre-epoch': '-1' }, '', 400, 'E_CELL_REQUEST'],
  ['a body that is not JSON', 'POST', '/v1/pull-weights', {}, '{', 400, 'E_CELL_REQUEST'],
  ['a body that lacks a field', 'POST', '/v1/pull-weights', {}, '{}', 400, 'E_CELL_REQUEST'],
  ['a frame that is none', 'POST', '/v1/forward-backward', {}, 'abc', 400, 'E_CELL_REQUEST'],
  ['no idempotency key', 'POST', '/v1/optimizer-step', {}, JSON.stringify(ADAM), 400, 'E_CELL_REQUEST'],
])('a request with %s gets a typed answer', async (_, method, path, headers, body, status, code) => {
  const { address } = await serve(bigram())
  const answer = await raw(address, method, path, { ...AUTHORIZED, ...headers }, body)
  expect(answer.status).toBe(status)
  expect(JSON.parse(answer.body)).toMatchObject({ error: { code, boundary: 'cell' } })
})

test('a cell serves the same protocol over TCP', async () => {
  const { connection } = await serve(bigram(), { address: '127.0.0.1:0' })
  expect(await connection.json('hello', { deadline: within(5000) })).toMatchObject({ vocabSize: 8 })
})

test('log-probs cross the socket as the float32 they are, NaN included', async () => {
  const logprobs = Array.from(Float32Array.of(-0.1, -1e-30, Number.NaN, -Infinity, -0, -16.635532))
  class Odd extends BigramEngine {
    override async *generate(): AsyncGenerator<GenerateEvent, void, undefined> {
      yield { kind: 'tokens', tokenIds: logprobs.map((_, i) => i), logprobs, policyVersions: logprobs.map(() => 1) }
      yield { kind: 'end', finishReason: 'stop', cachedTokens: 0 }
    }
  }
  const { connection } = await serve(new Odd({ vocabSize: 8 }))
  await connection.json('enter-rollout', command(1), {})
  const seen: GenerateEvent[] = []
  const options = { ...command(1), body: encodeGenerate(generation([1], 6)), signal: new AbortController().signal }
  for await (const text of connection.lines('generate', options, 5000)) {
    const event = decodeEvent(text)
    if (event) seen.push(event)
  }
  const back = tokensOf(seen).logprobs
  expect(back.map((value, i) => Object.is(value, logprobs[i]))).toEqual(logprobs.map(() => true))
})

async function* events(
  connection: CellConnection,
  maxTokens: number,
  signal: AbortSignal,
): AsyncGenerator<GenerateEvent> {
  const options = { ...command(9, 60_000), body: encodeGenerate(generation([1], maxTokens)), signal }
  for await (const text of connection.lines('generate', options, 5000)) {
    const event = decodeEvent(text)
    if (event) yield event
  }
}
async function runningOf({ connection }: Served): Promise<number> {
  return ((await connection.json('health', { deadline: within(5000) })) as { running: number }).running
}

test('a caller that goes away cancels its generation', async () => {
  const served = await serve(bigram({ tokenDelayMs: 1 }))
  await served.connection.json('enter-rollout', command(1), {})
  for await (const _ of events(served.connection, 4000, new AbortController().signal)) break
  await expect.poll(() => runningOf(served), { interval: 5 }).toBe(0)
})

test('a reader that stalls does not keep the cell from entering training', async () => {
  class Fast extends BigramEngine {
    override async *generate(_: unknown, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
      const many = Array<number>(1000).fill(1)
      while (!signal.aborted) yield { kind: 'tokens', tokenIds: many, logprobs: many, policyVersions: many }
    }
  }
  const served = await serve(new Fast({ vocabSize: 8 }))
  await served.connection.json('enter-rollout', command(1), {})
  const stalled = events(served.connection, 10, new AbortController().signal)
  await stalled.next()
  await new Promise((resolve) => setTimeout(resolve, 50))
  await served.connection.json('enter-training', command(2, 2000), {})
  expect(await runningOf(served)).toBe(0)
  await stalled.return(undefined)
})

test('health answers at once while a long verb runs', async () => {
  const served = await serve(bigram({ stepDelayMs: 300 }))
  const step = served.connection.call('forward-backward', {
    ...command(1),
    key: 'k',
    body: encodeMicroStep(demonstration([1, 2]), CROSS_ENTROPY),
  })
  const startedAt = performance.now()
  await runningOf(served)
  expect(performance.now() - startedAt).toBeLessThan(200)
  await step
})

test('a deadline says whether the work had started, and a started step answers its repetition', async () => {
  const { connection } = await serve(bigram({ stepDelayMs: 150 }))
  const step = (key: string, ms: number): Promise<unknown> =>
    connection.call('forward-backward', {
      ...command(1, ms),
      key,
      body: encodeMicroStep(demonstration([1, 2]), CROSS_ENTROPY),
    })
  const first = step('first', 40)
  const second = step('second', 40)
  await expect(first).rejects.toMatchObject({ code: 'E_CELL_TIMEOUT', retryable: true, details: { started: true } })
  await expect(second).rejects.toMatchObject({ code: 'E_CELL_TIMEOUT', details: { started: false } })
  await step('first', 5000)
  const one = await connection.gradients(within(5000))
  await connection.json('zero-gradients', command(1), {})
  await step('first', 5000)
  expect(await connection.gradients(within(5000))).toEqual(one)
})

test('a queued command is not begun once a higher epoch has come', async () => {
  const { connection } = await serve(bigram({ stepDelayMs: 100 }))
  const step = (epoch: number, key: string): Promise<unknown> =>
    connection.call('forward-backward', {
      ...command(epoch),
      key,
      body: encodeMicroStep(demonstration([1, 2]), CROSS_ENTROPY),
    })
  const running = step(1, 'a')
  await new Promise((resolve) => setTimeout(resolve, 20))
  const queued = step(1, 'b').catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 20))
  await connection.json('enter-training', command(2), {})
  await running
  expect(await queued).toMatchObject({ code: 'E_CELL_FENCED', details: { epoch: 1, seen: 2 } })
})

test('two cells that read from each other at the same time do not wait in a circle', async () => {
  const [a, b] = [await serve(bigram()), await serve(bigram({ seed: 2 }))]
  await Promise.all([
    a.connection.json('reduce-gradients', command(1), { from: [b.address] }),
    b.connection.json('pull-weights', command(1), { from: a.address, policyVersion: 5 }),
  ])
  expect(await b.connection.weights(within(5000))).toEqual(await a.connection.weights(within(5000)))
})

test('weights of another layout are refused and change nothing', async () => {
  const [a, b] = [await serve(bigram()), await serve(bigram({ vocabSize: 4 }))]
  const pull = a.connection.json('pull-weights', command(1), { from: b.address, policyVersion: 5 })
  await expect(pull).rejects.toMatchObject({ code: 'E_TRANSFER_LAYOUT', boundary: 'transfer' })
  expect(await a.connection.json('hello', { deadline: within(5000) })).toMatchObject({ policyVersion: 0 })
})

test('a reduction that loses one cell adds none of the others', async () => {
  const [core, one] = [await serve(bigram()), await serve(bigram())]
  await one.connection.call('forward-backward', {
    ...command(1),
    key: 'k',
    body: encodeMicroStep(demonstration([1, 2]), CROSS_ENTROPY),
  })
  const reduce = core.connection.json('reduce-gradients', command(1), { from: [one.address, `${one.address}-gone`] })
  await expect(reduce).rejects.toMatchObject({ code: 'E_CELL_UNREACHABLE' })
  expect(await core.connection.gradients(within(5000))).toEqual(new BigInt64Array(65))
})

test('a failure inside the engine is an error of the call, and the cell goes on', async () => {
  class Broken extends BigramEngine {
    override async save(): Promise<void> {
      throw new TypeError('the disk went away')
    }
  }
  const { connection } = await serve(new Broken({ vocabSize: 8 }))
  await expect(connection.json('save-checkpoint', command(1), { folder: '/nowhere' })).rejects.toMatchObject({
    code: 'E_CELL_INTERNAL',
    message: expect.stringContaining('the disk went away'),
  })
  await connection.json('zero-gradients', command(1), {})
})

test('a crash of the engine is told to the caller and to the process around the cell', async () => {
  class Crashing extends BigramEngine {
    override async zeroGradients(): Promise<void> {
      throw new GyreError('a thread ended', { boundary: 'engine', code: 'E_ENGINE_CRASHED', retryable: true })
    }
  }
  let crashes = 0
  const { connection } = await serve(new Crashing({ vocabSize: 8 }), { onCrash: () => (crashes += 1) })
  await expect(connection.json('zero-gradients', command(1), {})).rejects.toMatchObject({ code: 'E_ENGINE_CRASHED' })
  expect(crashes).toBe(1)
})

test('a closed cell cancels what runs and removes its socket', async () => {
  const served = await serve(bigram({ tokenDelayMs: 1 }))
  await served.connection.json('enter-rollout', command(1), {})
  const failure = collect(events(served.connection, 4000, new AbortController().signal)).catch((e: unknown) => e)
  await expect.poll(() => runningOf(served), { interval: 5 }).toBe(1)
  await cleanups.splice(1, 1)[0]?.()
  expect(await failure).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
  expect(() => statSync(served.address)).toThrow('ENOENT')
})

test('an engine that cannot hold gradients says so, and has none to drop', async () => {
  const { connection } = await serve(bigram())
  const hold = { ...command(1), key: 'k', body: encodeMicroStep(demonstration([1, 2]), CROSS_ENTROPY) }
  await expect(connection.call('hold-gradient', hold)).rejects.toMatchObject({ code: 'E_TRAINER_NOT_HOLDABLE' })
  expect(await connection.json('drop-held', command(1), {})).toEqual({})
})
