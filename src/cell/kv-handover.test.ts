import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { closeEngines, randomIds, SHAPE, start } from '../../test/support/embedded-engines.ts'
import type { EmbeddedEngine, EmbeddedEngineOptions } from '../adapters/engine/embedded/embedded-engine.ts'
import { cellId, executionId } from '../core/ids.ts'
import type { CellEngine, FetchedKv, KvCache } from '../ports/cell.ts'
import type { GenerateEvent } from '../ports/engine.ts'
import { CellConnection } from './connection.ts'
import { Deadline } from './deadline.ts'
import { decodeEvent, encodeGenerate } from './generate-codec.ts'
import { joinBlocks } from './kv-stream.ts'
import { serveCell } from './server.ts'

/** 32 KiB a block, so that the prompt needs several steps of a transfer. */
const MODEL = { ...SHAPE, kvHeads: 4, headDim: 64 }
const PROMPT = randomIds(1, 1200)
const BLOCKS = PROMPT.length / 8
const TOKEN = 'a-token-of-this-test'
const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
  await closeEngines()
})

interface TestCell {
  readonly engine: EmbeddedEngine
  readonly address: string
  readonly kill: () => Promise<void>
  command(verb: 'pin-kv' | 'fetch-kv' | 'release-kv' | 'enter-training', body: object, call?: Call): Promise<unknown>
  /** Generates, by default two tokens after PROMPT. @returns its cached tokens. */
  generate(name: string, promptIds?: readonly number[], maxTokens?: number, onToken?: () => void): Promise<number>
}
interface Call {
  readonly epoch?: number
  readonly ms?: number
}

const callOf = ({ epoch = 1, ms = 20_000 }: Call = {}): { deadline: Deadline; epoch: number } => ({
  deadline: new Deadline('call', ms),
  epoch,
})

async function cell(
  options: Partial<EmbeddedEngineOptions> = {},
  change: (kv: KvCache) => Partial<KvCache> = () => ({}),
): Promise<TestCell> {
  const engine = await start({ model: MODEL, slots: 2, maxContext: 1500, ...options })
  const folder = mkdtempSync(join(tmpdir(), 'gyre-cell-'))
  cleanups.push(() => rmSync(folder, { recursive: true }))
  // The engine itself, but for what the test changes about its cache.
  const served = new Proxy<CellEngine>(engine, {
    get: (target, name) => {
      if (name === 'kv') return { ...engine.kv, ...change(engine.kv) }
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? (value.bind(target) as unknown) : value
    },
  })
  const server = await serveCell({
    engine: served,
    cellId: cellId('c'),
    slots: 2,
    address: join(folder, 's'),
    token: TOKEN,
  })
  cleanups.push(() => server.close())
  const connection = new CellConnection(server.address, TOKEN)
  cleanups.push(() => connection.close())
  await connection.json('enter-rollout', callOf(), {})
  return {
    engine,
    address: server.address,
    kill: () => server.close(),
    command: (verb, body, call) => connection.json(verb, callOf(call), body),
    generate: async (name, promptIds = [...PROMPT, 1], maxTokens = 2, onToken = () => {}) => {
      const sampling = { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 3 }
      const ids = Int32Array.from(promptIds)
      const request = { requestId: 'r', executionId: executionId(name), promptIds: ids, sampling }
      const call = { ...callOf({ epoch: 9 }), body: encodeGenerate(request), signal: new AbortController().signal }
      let last: GenerateEvent | undefined
      for await (const line of connection.lines('generate', call, 5000)) {
        last = decodeEvent(line) ?? last
        onToken()
      }
      return last?.kind === 'end' ? last.cachedTokens : -1
    },
  }
}

/** A source that has PROMPT of execution x pinned. `change` may disturb how its blocks are read. */
async function source(change?: (kv: KvCache) => Partial<KvCache>, options = {}): Promise<TestCell> {
  const made = await cell(options, change)
  await made.generate('x', PROMPT)
  expect(await made.command('pin-kv', { executionIds: ['x'], ttlMs: 60_000 })).toMatchObject({
    pinned: [{ executionId: 'x', tokens: PROMPT.length }],
  })
  return made
}
const fetchFrom = (to: TestCell, from: TestCell, call?: Call): Promise<FetchedKv> =>
  to.command('fetch-kv', { from: from.address, executionIds: ['x'] }, call) as Promise<FetchedKv>

/** Whether nothing holds on to room: another arrival of everything finds all of it. */
async function expectNothingLeft(to: TestCell, from: TestCell): Promise<void> {
  const offer = await from.engine.kv.pin([executionId('x')])
  const arrival = await to.engine.kv.accept({ ...offer, policyVersion: to.engine.policyVersion })
  expect(arrival.wanted).toHaveLength(BLOCKS)
  await arrival.close()
}

function gate(): { readonly opened: Promise<void>; readonly open: () => void } {
  let settle: (() => void) | undefined
  const opened = new Promise<void>((resolve) => (settle = resolve))
  return { opened, open: () => settle?.() }
}
/** Reads go through once the gate is open; the first `free` do not wait. */
function gatedReads(opened: Promise<void>, free: number): (kv: KvCache) => Partial<KvCache> {
  let reads = 0
  return (kv) => ({
    read: async (serial, blocks) => {
      if (++reads > free) await opened
      return kv.read(serial, blocks)
    },
  })
}

test('a whole prompt goes over in pieces, and is not computed again', async () => {
  const sizes: number[] = []
  const from = await source((kv) => ({
    read: (serial, blocks) => {
      sizes.push(blocks.length)
      return kv.read(serial, blocks)
    },
  }))
  const to = await cell()
  const bytes = BLOCKS * 32 * 1024
  expect(await fetchFrom(to, from)).toEqual({ executions: 1, tokens: PROMPT.length, bytes })
  expect(sizes).toEqual([64, 64, 22])
  expect(await to.generate('x')).toBe(PROMPT.length)
})

test('a generation waits for blocks of its execution, and others do not', async () => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 1))
  const to = await cell()
  const fetching = fetchFrom(to, from)
  await new Promise((resolve) => setTimeout(resolve, 100))
  let hasWaited = true
  const waiting = to.generate('x').finally(() => (hasWaited = false))
  expect(await to.generate('other', randomIds(9, 20))).toBe(0)
  await new Promise((resolve) => setTimeout(resolve, 100))
  expect(hasWaited).toBe(true)
  open()
  expect(await waiting).toBe(PROMPT.length)
  expect(await fetching).toMatchObject({ executions: 1 })
})

test('the deadline of a fetch ends it, and the wait of generations', async () => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 1))
  const to = await cell()
  const fetching = fetchFrom(to, from, { ms: 300 }).catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 50))
  const startedAt = performance.now()
  expect(await to.generate('x')).toBe(0)
  expect(performance.now() - startedAt).toBeLessThan(2500)
  expect(await fetching).toMatchObject({ code: 'E_CELL_TIMEOUT', retryable: true })
  open()
})

test('a source that dies in the middle fails the fetch, and nothing of it is left', async () => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 2))
  const to = await cell()
  const fetching = fetchFrom(to, from).catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 150))
  await from.kill()
  expect(await fetching).toMatchObject({ code: 'E_CELL_UNREACHABLE', retryable: true })
  open()
  await expectNothingLeft(to, from)
  expect(await to.generate('x')).toBe(0)
})

test('a pin that ends in the middle fails the fetch, and nothing of it is left', async () => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 1))
  const to = await cell()
  const fetching = fetchFrom(to, from).catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 100))
  await from.command('release-kv', {})
  open()
  expect(await fetching).toMatchObject({ code: 'E_CELL_UNREACHABLE' })
  await expectNothingLeft(to, from)
})

test('a pin that ended before the blocks were asked for says so', async () => {
  const from = await source((kv) => ({
    read: async (serial, blocks) => {
      await kv.unpin()
      return kv.read(serial, blocks)
    },
  }))
  const to = await cell()
  await expect(fetchFrom(to, from)).rejects.toMatchObject({ code: 'E_ENGINE_KV_GONE', boundary: 'engine' })
  await expectNothingLeft(to, from)
})

test.each([
  ['enters training', 'enter-training', 'E_TRANSFER_CANCELLED'],
  ['hears of a higher epoch', 'release-kv', 'E_CELL_FENCED'],
] as const)('a destination that %s ends its fetch', async (_, verb, code) => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 1))
  const to = await cell()
  const fetching = fetchFrom(to, from).catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 100))
  await to.command(verb, {}, { epoch: 2 })
  open()
  expect(await fetching).toMatchObject({ code })
  await expectNothingLeft(to, from)
})

test('blocks of another layout are refused', async () => {
  const from = await source(undefined, { model: { ...MODEL, kvHeads: 2 } })
  const to = await cell()
  await expect(fetchFrom(to, from)).rejects.toMatchObject({ code: 'E_TRANSFER_LAYOUT', boundary: 'transfer' })
})

test('blocks that find no room beside running generations are left', async () => {
  const from = await source()
  // 187 pages: 63 and more for what runs, 150 for what would come.
  const to = await cell({ slots: 1 })
  let fetched: Promise<FetchedKv> | undefined
  await to.generate('y', randomIds(8, 500), 900, () => {
    fetched ??= fetchFrom(to, from)
  })
  expect(await fetched).toEqual({ executions: 0, tokens: 0, bytes: 0 })
  expect(await fetchFrom(to, from)).toMatchObject({ executions: 1 })
})

test('the end of its owner ends a fetch that hangs', async () => {
  const { opened, open } = gate()
  const from = await source(gatedReads(opened, 0))
  const to = await cell()
  const fetching = fetchFrom(to, from).catch((error: unknown) => error)
  await new Promise((resolve) => setTimeout(resolve, 50))
  await to.kill()
  expect(await fetching).toBeInstanceOf(Error)
  open()
})

async function* pieces(...lengths: readonly number[]): AsyncGenerator<Uint8Array> {
  let next = 0
  for (const length of lengths) yield Uint8Array.from({ length }, () => next++ % 251)
}

/** Three blocks of five numbers. */
async function whole(...lengths: readonly number[]): Promise<Buffer> {
  const parts: Uint8Array[] = []
  for await (const data of joinBlocks(pieces(...lengths), 3, 5)) parts.push(new Uint8Array(data.buffer))
  return Buffer.concat(parts)
}

test('blocks are joined however their bytes were cut, and no block is made of too few', async () => {
  const plain = await whole(60)
  expect(plain).toEqual(Buffer.from(Uint8Array.from({ length: 60 }, (_, i) => i % 251)))
  expect(await whole(1, 0, 18, 2, 38, 1)).toEqual(plain)
  await expect(whole(59)).rejects.toThrow('short of 3')
  await expect(whole(60, 1)).rejects.toThrow('more came than 3 blocks')
})
