import { afterEach, describe, expect, test } from 'vitest'
import {
  closeEngines,
  randomIds,
  sample,
  type Sampled,
  SHAPE,
  start,
} from '../../../../test/support/embedded-engines.ts'
import { executionId } from '../../../core/ids.ts'
import type { KvOffer } from '../../../ports/cell.ts'
import type { EmbeddedEngine } from './embedded-engine.ts'

afterEach(closeEngines)

const X = executionId('x')
/** Long enough for a move in its middle. [tokens] */
const LENGTH = 1000
const LONG = { maxContext: 2048 }

interface Moved {
  readonly offer: KvOffer
  /** Blocks that went over. */
  readonly blocks: number
  /** Sequences that found room. */
  readonly sequences: number
}

/** Takes an offer into another engine, some blocks at a time. */
async function take(from: EmbeddedEngine, to: EmbeddedEngine, offer: KvOffer, chunk = 5): Promise<Moved> {
  const { wanted, sequences, ...arrival } = await to.kv.accept(offer)
  try {
    for (let at = 0; at < wanted.length; at += chunk) {
      await arrival.write(await from.kv.read(offer.serial, wanted.subarray(at, at + chunk)))
    }
  } finally {
    await arrival.close()
  }
  return { offer, blocks: wanted.length, sequences: sequences.length }
}
async function move(from: EmbeddedEngine, to: EmbeddedEngine): Promise<Moved> {
  return take(from, to, await from.kv.pin([X]))
}

/** Generates on one engine, moves to the other in the middle, and goes on there. */
async function generateAndMove(
  [from, to]: readonly [EmbeddedEngine, EmbeddedEngine],
  prompt: readonly number[],
  handOver: () => Promise<Moved | undefined>,
): Promise<{ readonly joined: Pick<Sampled, 'ids' | 'logprobs'>; readonly rest: Sampled; readonly moved?: Moved }> {
  const stop = new AbortController()
  let moving: Promise<Moved | undefined> | undefined
  const first: Sampled = { ids: [], logprobs: [], versions: [], cachedTokens: -1 }
  const running = sample(from, prompt, { maxTokens: LENGTH }, stop.signal, (soFar) => {
    // The source generates on while the blocks go over.
    if (soFar.ids.length >= 20) moving ??= handOver().finally(() => stop.abort())
    Object.assign(first, { ids: [...soFar.ids], logprobs: [...soFar.logprobs] })
  })
  await running.catch(() => undefined)
  const moved = await moving
  const rest = await sample(to, [...prompt, ...first.ids], { maxTokens: LENGTH - first.ids.length })
  const joined = { ids: [...first.ids, ...rest.ids], logprobs: [...first.logprobs, ...rest.logprobs] }
  return { joined, rest, ...(moved === undefined ? {} : { moved }) }
}

describe('a generation that moves in its middle has the bits of one that stays', () => {
  test.each([
    ['one thread', SHAPE, 1],
    ['two threads', SHAPE, 2],
    ['one head a key head', { ...SHAPE, kvHeads: 4 }, 1],
    ['wide heads', { ...SHAPE, heads: 2, kvHeads: 1, headDim: 32 }, 1],
  ])('%s, with and without hand-over', async (_, model, threads) => {
    const [a, b, c] = await Promise.all([
      start({ ...LONG, model }),
      start({ ...LONG, model, threads }),
      start({ ...LONG, model }),
    ])
    const prompt = randomIds(1, 203)
    const whole = await sample(c, prompt, { maxTokens: LENGTH })
    const kept = await generateAndMove([a, b], prompt, () => move(a, b))
    expect(kept.joined).toEqual({ ids: whole.ids, logprobs: whole.logprobs })
    expect(kept.moved?.blocks).toBeGreaterThanOrEqual(Math.floor(203 / 8))
    // What came over was not computed again: all whole blocks of the prompt at least.
    expect(kept.rest.cachedTokens).toBeGreaterThanOrEqual(Math.floor(203 / 8) * 8)
    // The source may have been ahead of what this side had heard; the last token of a prompt is always computed.
    const heard = prompt.length + kept.joined.ids.length - kept.rest.ids.length
    expect(kept.rest.cachedTokens).toBe(Math.min((kept.moved?.blocks ?? 0) * 8, heard - 1))
    const again = await generateAndMove([a, c], randomIds(2, 99), async () => undefined)
    const stayed = await sample(b, randomIds(2, 99), { maxTokens: LENGTH })
    expect(again.joined).toEqual({ ids: stayed.ids, logprobs: stayed.logprobs })
  })
})

async function sampleAs(engine: EmbeddedEngine, id: string, prompt: readonly number[], maxTokens = 2): Promise<number> {
  let cachedTokens = -1
  const sampling = { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 3 }
  const request = { requestId: 'r', executionId: executionId(id), promptIds: Int32Array.from(prompt), sampling }
  for await (const event of engine.generate(request, new AbortController().signal)) {
    if (event.kind === 'end') cachedTokens = event.cachedTokens
  }
  return cachedTokens
}
const ids = (...names: string[]): ReturnType<typeof executionId>[] => names.map(executionId)

test('a common beginning of executions is sent once, and not at all to an engine that has it', async () => {
  const [a, b, c] = await Promise.all([start(), start(), start()])
  const system = randomIds(1, 160)
  const own = (n: number): number[] => [...system, ...randomIds(10 + n, 40)]
  // The first alone, so that the others share its pages.
  for (const n of [0, 1, 2]) await sampleAs(a, `x${n}`, own(n))
  const offer = await a.kv.pin(ids('x0', 'x1', 'x2', 'unknown'))
  expect(offer.sequences.map((s) => [s.executionId, s.tokenIds.length])).toEqual([
    ['x0', 200],
    ['x1', 200],
    ['x2', 200],
  ])
  expect(await take(a, b, offer)).toMatchObject({ blocks: 20 + 3 * 5, sequences: 3 })
  for (const n of [0, 1, 2]) expect(await sampleAs(b, `x${n}`, [...own(n), 1])).toBe(200)
  await sampleAs(c, 'other', [...system, 5])
  expect(await take(a, c, offer)).toMatchObject({ blocks: 3 * 5, sequences: 3 })
  expect(await take(a, c, offer)).toMatchObject({ blocks: 0, sequences: 3 })
})

test('every path of an execution goes over, the most recent first', async () => {
  const [a, b] = await Promise.all([start(), start()])
  const [main, sub] = [randomIds(1, 64), randomIds(2, 48)]
  await sampleAs(a, 'x', main)
  await sampleAs(a, 'x', sub)
  const moved = await move(a, b)
  expect(moved.offer.sequences.map((s) => s.tokenIds.length)).toEqual([48, 64])
  expect(await sampleAs(b, 'x', [...main, 1])).toBe(64)
  expect(await sampleAs(b, 'x', [...sub, 1])).toBe(48)
})

test('blocks of other weights, or of weights that have no version yet, are left', async () => {
  const [a, b] = await Promise.all([start(), start()])
  await sampleAs(a, 'x', randomIds(1, 64))
  await b.setPolicyVersion(5)
  expect(await move(a, b)).toMatchObject({ blocks: 0, sequences: 0 })
  await a.optimizerStep({ learningRate: 0, beta1: 0, beta2: 0, epsilon: 1, weightDecay: 0, gradientClip: 0 })
  await sampleAs(a, 'x', randomIds(1, 64))
  expect((await a.kv.pin([X])).sequences).toEqual([])
  await a.setPolicyVersion(5)
  expect(await move(a, b)).toMatchObject({ blocks: 8, sequences: 1 })
})

test('blocks of another layout are left', async () => {
  const [a, b] = await Promise.all([start(), start({ model: { ...SHAPE, layers: 1 } })])
  await sampleAs(a, 'x', randomIds(1, 64))
  expect(await move(a, b)).toMatchObject({ blocks: 0, sequences: 0 })
})

test('a change of weights ends pins and arrivals', async () => {
  const [a, b] = await Promise.all([start(), start()])
  await sampleAs(a, 'x', randomIds(1, 64))
  const offer = await a.kv.pin([X])
  const arrival = await b.kv.accept(offer)
  const data = await a.kv.read(offer.serial, arrival.wanted)
  await b.importWeights(await a.exportWeights(), 0)
  await expect(arrival.write(data)).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
  await a.importWeights(await b.exportWeights(), 0)
  await expect(a.kv.read(offer.serial, arrival.wanted)).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
  expect(await sampleAs(b, 'x', [...randomIds(1, 64), 1])).toBe(0)
})

test('a block that was unpinned is not read, though it is pinned again', async () => {
  const a = await start()
  await sampleAs(a, 'x', randomIds(1, 64))
  const { serial, sequences } = await a.kv.pin([X])
  const blocks = sequences[0]?.blocks ?? new Int32Array(0)
  expect(await a.kv.read(serial, blocks)).toHaveLength(8 * a.kv.layout.blockFloats)
  await expect(a.kv.read(serial, Int32Array.of(500))).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
  await a.kv.unpin()
  await a.kv.pin([X])
  await expect(a.kv.read(serial, blocks)).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
})

test('a pinned sequence outlives its eviction, and running generations outrank it', async () => {
  // One slot of 20 blocks, and 4 idle ones share them.
  const [a, b] = await Promise.all([start({ slots: 1, maxContext: 160 }), start()])
  const prompt = randomIds(1, 64)
  await sampleAs(a, 'x', prompt)
  const offer = await a.kv.pin([X])
  // 12 blocks are free: it takes those, and evicts what is idle.
  await sampleAs(a, 'y', randomIds(2, 90))
  expect(await take(a, b, offer)).toMatchObject({ blocks: 8, sequences: 1 })
  expect(await sampleAs(b, 'x', [...prompt, 1])).toBe(64)
  // Now it needs all of them.
  await sampleAs(a, 'z', randomIds(3, 150))
  await expect(a.kv.read(offer.serial, Int32Array.of(0))).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
})

test('an arrival finds only the room that running generations leave, and gives it back', async () => {
  const [a, b] = await Promise.all([start(), start({ slots: 1, maxContext: 160 })])
  for (const n of [0, 1]) await sampleAs(a, `x${n}`, randomIds(n, 120))
  const offer = await a.kv.pin(ids('x0', 'x1'))
  // 15 of 20 blocks for the first, none for the second.
  const first = await b.kv.accept(offer)
  expect(first.sequences).toEqual([{ index: 0, after: 15 }])
  expect((await b.kv.accept(offer)).sequences).toEqual([])
  await first.close()
  await first.close()
  const second = await b.kv.accept(offer)
  expect(second.sequences).toEqual([{ index: 0, after: 15 }])
  // A running generation needs the whole pool.
  await sampleAs(b, 'y', randomIds(7, 150))
  const data = await a.kv.read(offer.serial, second.wanted)
  await expect(second.write(data)).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE' })
  await second.close()
  expect(await take(a, b, offer)).toMatchObject({ blocks: 15, sequences: 1 })
})
