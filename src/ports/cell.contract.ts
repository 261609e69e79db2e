/** @file What every Cell must do, whatever engine and transport are behind it. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { executionId } from '../core/ids.ts'
import type { MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import { CELL_PROTOCOL_VERSION } from './cell.ts'
import type { Cell, FetchedKv } from './cell.ts'
import type { GenerateEvent, GenerateRequest } from './engine.ts'

/** Two fresh cells of one run, with equal layout and ids below 8 in their vocabulary. */
export interface CellPair {
  readonly core: Cell
  readonly satellite: Cell
  close(): Promise<void>
}

export const generation = (promptIds: readonly number[], maxTokens: number, seed = 7): GenerateRequest => ({
  requestId: `r-${seed}`,
  executionId: executionId('x-1'),
  promptIds: Int32Array.from(promptIds),
  sampling: { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed },
})

/** One row 1 2 3 ... whose tokens after the first all carry loss. */
export function demonstration(tokenIds: readonly number[]): MicroBatch {
  const T = tokenIds.length
  const R = T - 1
  return {
    tokenIds: Int32Array.from(tokenIds),
    positions: Int32Array.from(tokenIds.keys()),
    subtreeEnd: new Int32Array(T).fill(T),
    targetRows: Int32Array.from({ length: R }, (_, i) => i),
    targetIds: Int32Array.from(tokenIds.slice(1)),
    targetWeights: new Float32Array(R).fill(1 / R),
    targetAdvantages: new Float32Array(R).fill(1),
    targetBehaviorLogprobs: new Float32Array(R).fill(-1),
  }
}

export const CROSS_ENTROPY: Objective = { kind: 'cross-entropy' }
export const ADAM: OptimizerParams = {
  learningRate: 0.01,
  beta1: 0.9,
  beta2: 0.999,
  epsilon: 1e-8,
  weightDecay: 0,
  gradientClip: 1,
}

async function drained(events: AsyncIterator<GenerateEvent>): Promise<void> {
  while ((await events.next()).done !== true);
}

export async function collect(events: AsyncIterable<GenerateEvent>): Promise<GenerateEvent[]> {
  const all: GenerateEvent[] = []
  for await (const event of events) all.push(event)
  return all
}

/** Token ids and log-probs of a generation, its events joined. */
export function tokensOf(events: readonly GenerateEvent[]): { ids: number[]; logprobs: number[]; versions: number[] } {
  const tokens = events.filter((e) => e.kind === 'tokens')
  return {
    ids: tokens.flatMap((e) => e.tokenIds),
    logprobs: tokens.flatMap((e) => e.logprobs),
    versions: tokens.flatMap((e) => e.policyVersions),
  }
}

const never = (): AbortSignal => new AbortController().signal

const NOTHING = { executions: 0, tokens: 0, bytes: 0 }
const TTL_MS = 30_000
/** A generation of an execution of its own, so that nothing of it is cached before. */
const own = (execution: string, promptIds: readonly number[], maxTokens: number): GenerateRequest => ({
  ...generation(promptIds, maxTokens, 11),
  executionId: executionId(execution),
})
/** Ids that no other test begins with. */
const promptOf = (first: number): number[] => Array.from({ length: 70 }, (_, i) => (i === 0 ? first : (i * 5) % 8))

/** Runs the conformance tests. `start` is called once; the tests share the pair and run in order. */
export function describeCellContract(name: string, start: () => Promise<CellPair>): void {
  describe(`${name} keeps the cell contract`, () => {
    let pair: CellPair
    let core: Cell
    let satellite: Cell
    let folder: string
    let epoch = 1
    beforeAll(async () => {
      pair = await start()
      ;({ core, satellite } = pair)
      folder = mkdtempSync(join(tmpdir(), 'gyre-cell-'))
    })
    afterAll(async () => {
      await pair.close()
      rmSync(folder, { recursive: true })
    })

    test('hello tells the layout, and both cells have the same', async () => {
      const [a, b] = [await core.hello(), await satellite.hello()]
      expect(a.protocolVersion).toBe(CELL_PROTOCOL_VERSION)
      expect(a.cellId).toBe(core.cellId)
      expect(a.slots).toBeGreaterThan(0)
      expect([b.parameterCount, b.vocabSize, b.backend]).toEqual([a.parameterCount, a.vocabSize, a.backend])
    })

    test('a fresh cell admits no generation until it enters rollout', async () => {
      await expect(collect(core.generate(generation([1], 1), never()))).rejects.toMatchObject({
        code: 'E_ENGINE_NOT_ADMITTING',
        retryable: true,
      })
    })

    test('cells with pulled weights generate the same tokens and log-probs, stamped with the version', async () => {
      await satellite.pullWeights(epoch, core.address, 3)
      await core.setPolicyVersion(epoch, 3)
      await core.enterRollout(epoch)
      await satellite.enterRollout(epoch)
      const events = await Promise.all(
        [core, satellite].map((cell) => collect(cell.generate(generation([1, 2, 3], 12), never()))),
      )
      const [a, b] = events.map(tokensOf)
      expect(a?.ids).toHaveLength(12)
      expect(a?.logprobs.every((l) => l <= 0 && Math.fround(l) === l)).toBe(true)
      expect(a?.versions).toEqual(Array(12).fill(3))
      expect(b).toEqual(a)
      expect(events[0]?.at(-1)).toMatchObject({ kind: 'end', finishReason: 'length' })
    })

    test('a generation resumed elsewhere from its partial tokens goes on as it would have', async () => {
      const whole = tokensOf(await collect(core.generate(generation([1, 2], 10), never())))
      const rest = await collect(satellite.generate(generation([1, 2, ...whole.ids.slice(0, 4)], 6), never()))
      expect(tokensOf(rest).ids).toEqual(whole.ids.slice(4))
    })

    const handsOver = async (): Promise<boolean> => (await core.hello()).kv === 'blocks'

    test('a generation whose cache is handed over goes on as it would have', async () => {
      const prompt = promptOf(7)
      const whole = tokensOf(await collect(core.generate(own('x-kv', prompt, 30), never())))
      const ids = [executionId('x-kv'), executionId('x-unknown')]
      const pinned = await core.pinKv(epoch, ids, TTL_MS)
      const fetched = await satellite.fetchKv(epoch, core.address, ids)
      const events = await collect(satellite.generate(own('x-kv', [...prompt, ...whole.ids.slice(0, 20)], 10), never()))
      expect(tokensOf(events)).toMatchObject({ ids: whole.ids.slice(20), logprobs: whole.logprobs.slice(20) })
      await core.releaseKv(epoch)
      if (!(await handsOver())) {
        expect([pinned, fetched]).toEqual([[], NOTHING])
        return
      }
      expect(pinned).toEqual([{ executionId: 'x-kv', tokens: expect.any(Number), bytes: expect.any(Number) }])
      expect(pinned[0]?.tokens).toBeGreaterThan(0)
      expect(pinned[0]?.tokens).toBeLessThanOrEqual(100)
      expect(fetched).toEqual({ executions: 1, tokens: pinned[0]?.tokens, bytes: pinned[0]?.bytes })
      const end = events.at(-1)
      expect(end?.kind === 'end' && end.cachedTokens).toBeGreaterThanOrEqual(Math.min(fetched.tokens, 89))
    })

    test('a generation goes on while its cache is handed over', async () => {
      const prompt = promptOf(6)
      const stop = new AbortController()
      const seen: GenerateEvent[] = []
      let moving: Promise<FetchedKv> | undefined
      const move = async (): Promise<FetchedKv> => {
        await satellite.pinKv(epoch, [executionId('x-pre')], TTL_MS)
        return core.fetchKv(epoch, satellite.address, [executionId('x-pre')])
      }
      await (async () => {
        for await (const event of satellite.generate(own('x-pre', prompt, 1000), stop.signal)) {
          seen.push(event)
          moving ??= move().finally(() => stop.abort())
        }
      })().catch(() => undefined)
      const fetched = await moving
      await satellite.releaseKv(epoch)
      if (await handsOver()) expect(fetched?.executions).toBe(1)
      const partial = tokensOf(seen).ids
      const resumed = await collect(core.generate(own('x-pre', [...prompt, ...partial], 8), never()))
      const whole = await collect(core.generate(own('x-pre-alone', prompt, partial.length + 8), never()))
      expect(tokensOf(resumed).ids).toEqual(tokensOf(whole).ids.slice(partial.length))
      expect(tokensOf(resumed).logprobs).toEqual(tokensOf(whole).logprobs.slice(partial.length))
    })

    test('blocks that were released, or whose time is over, or of another policy version, are left', async () => {
      await collect(core.generate(own('x-ends', promptOf(5), 2), never()))
      const ids = [executionId('x-ends')]
      await core.pinKv(epoch, ids, TTL_MS)
      await satellite.setPolicyVersion(epoch, 4)
      expect(await satellite.fetchKv(epoch, core.address, ids)).toEqual(NOTHING)
      await satellite.setPolicyVersion(epoch, 3)
      await core.releaseKv(epoch)
      await core.releaseKv(epoch)
      expect(await satellite.fetchKv(epoch, core.address, ids)).toEqual(NOTHING)
      await core.pinKv(epoch, ids, 20)
      await new Promise((resolve) => setTimeout(resolve, 200))
      expect(await satellite.fetchKv(epoch, core.address, ids)).toEqual(NOTHING)
    })

    test('entering training ends every pin', async () => {
      await collect(satellite.generate(own('x-leaves', promptOf(4), 2), never()))
      await satellite.pinKv(epoch, [executionId('x-leaves')], TTL_MS)
      await satellite.enterTraining(epoch)
      expect(await core.fetchKv(epoch, satellite.address, [executionId('x-leaves')])).toEqual(NOTHING)
      await satellite.enterRollout(epoch)
    })

    test('commands about cached blocks are fenced', async () => {
      const fenced = { code: 'E_CELL_FENCED' }
      await expect(core.pinKv(epoch - 1, [executionId('x-1')], TTL_MS)).rejects.toMatchObject(fenced)
      await expect(core.fetchKv(epoch - 1, satellite.address, [])).rejects.toMatchObject(fenced)
      await expect(core.releaseKv(epoch - 1)).rejects.toMatchObject(fenced)
    })

    test('a fetch from a cell that is not there fails, and changes nothing', async () => {
      const isPossible = await handsOver()
      const fetching = core.fetchKv(epoch, join(folder, 'nobody.sock'), [executionId('x-1')])
      if (isPossible) {
        await expect(fetching).rejects.toMatchObject({ code: 'E_CELL_UNREACHABLE', retryable: true })
      } else expect(await fetching).toEqual(NOTHING)
    })

    test('its end is a stop when the stop token comes, which is among the tokens', async () => {
      const free = tokensOf(await collect(core.generate(generation([4], 6), never())))
      const stop = free.ids[2] as number
      const request = generation([4], 6)
      const events = await collect(
        core.generate({ ...request, sampling: { ...request.sampling, stopTokenIds: [stop] } }, never()),
      )
      expect(events.at(-1)).toMatchObject({ kind: 'end', finishReason: 'stop' })
      expect(tokensOf(events).ids.at(-1)).toBe(stop)
    })

    test('a context without room for one token is refused as overlong', async () => {
      const { maxContext } = await core.hello()
      const prompt = Array<number>(maxContext).fill(1)
      await expect(collect(core.generate(generation(prompt, 1), never()))).rejects.toMatchObject({
        code: 'E_ENGINE_OVERLONG',
      })
    })

    test('a caller that aborts gets a cancellation, and keeps the tokens it has', async () => {
      const controller = new AbortController()
      const seen: GenerateEvent[] = []
      const reading = (async () => {
        for await (const event of core.generate(generation([1], 400), controller.signal)) {
          seen.push(event)
          controller.abort()
        }
      })()
      await expect(reading).rejects.toMatchObject({ code: 'E_ENGINE_CANCELLED' })
      expect(seen.length).toBeGreaterThan(0)
    })

    test('training is refused while the cell is in rollout', async () => {
      await expect(core.zeroGradients(epoch)).rejects.toMatchObject({ code: 'E_CELL_NOT_TRAINING' })
    })

    test('entering training cancels what runs, is idempotent, and stops admission', async () => {
      const running = core.generate(generation([1], 1_000_000), never())[Symbol.asyncIterator]()
      // It runs once it has said something.
      await running.next()
      const failure = drained(running).then(
        () => undefined,
        (error: unknown) => error,
      )
      epoch += 1
      await core.enterTraining(epoch)
      await core.enterTraining(epoch)
      expect(await failure).toMatchObject({ code: 'E_ENGINE_CANCELLED', retryable: true })
      await expect(collect(core.generate(generation([1], 1), never()))).rejects.toMatchObject({
        code: 'E_ENGINE_NOT_ADMITTING',
      })
    })

    test('a command with an older epoch is fenced and changes nothing', async () => {
      await expect(core.enterRollout(epoch - 1)).rejects.toMatchObject({ code: 'E_CELL_FENCED', retryable: false })
      await expect(collect(core.generate(generation([1], 1), never()))).rejects.toMatchObject({
        code: 'E_ENGINE_NOT_ADMITTING',
      })
    })

    test('a micro-step delivered twice with one key counts once', async () => {
      await satellite.enterTraining(epoch)
      const batch = demonstration([1, 2, 3, 4])
      const optimize = async (deliveries: number): Promise<number> => {
        await core.zeroGradients(epoch)
        const results = []
        for (let i = 0; i < deliveries; i++) {
          results.push(await core.forwardBackward(epoch, `once-${deliveries}`, batch, CROSS_ENTROPY))
        }
        expect(results.at(-1)).toEqual(results[0])
        expect(results[0]?.logprobs).toHaveLength(3)
        const params = { ...ADAM, learningRate: 0 }
        return (await core.optimizerStep(epoch, `norm-${deliveries}`, params)).gradientNorm
      }
      const norm = await optimize(1)
      expect(norm).toBeGreaterThan(0)
      expect(await optimize(3)).toBe(norm)
    })

    test('a key that comes back with another micro-step is a conflict', async () => {
      await core.forwardBackward(epoch, 'reused', demonstration([1, 2]), CROSS_ENTROPY)
      await expect(core.forwardBackward(epoch, 'reused', demonstration([2, 1]), CROSS_ENTROPY)).rejects.toMatchObject({
        code: 'E_CELL_KEY_CONFLICT',
      })
    })

    test('micro-steps split over two cells reduce to the gradient of one cell, bit for bit', async () => {
      const batches = [demonstration([1, 2, 3]), demonstration([3, 2, 1, 4])]
      const params = { ...ADAM, learningRate: 0 }
      await core.zeroGradients(epoch)
      for (const [i, b] of batches.entries()) await core.forwardBackward(epoch, `one-${i}`, b, CROSS_ENTROPY)
      const alone = await core.optimizerStep(epoch, 'one', params)
      await core.zeroGradients(epoch)
      await satellite.pullWeights(epoch, core.address, 3)
      await satellite.zeroGradients(epoch)
      const [first, second] = batches as [MicroBatch, MicroBatch]
      await Promise.all([
        core.forwardBackward(epoch, 'two-1', second, CROSS_ENTROPY),
        satellite.forwardBackward(epoch, 'two-0', first, CROSS_ENTROPY),
      ])
      await core.reduceGradients(epoch, [satellite.address])
      const both = await core.optimizerStep(epoch, 'two', params)
      expect(both.gradientNorm).toBe(alone.gradientNorm)
    })

    test('an optimizer step repeated with its key is taken once', async () => {
      await core.zeroGradients(epoch)
      const batch = demonstration([1, 2, 3, 4, 5])
      const before = await core.forwardBackward(epoch, 'a', batch, CROSS_ENTROPY)
      const first = await core.optimizerStep(epoch, 'step', ADAM)
      expect(await core.optimizerStep(epoch, 'step', ADAM)).toEqual(first)
      await core.zeroGradients(epoch)
      const after = await core.forwardBackward(epoch, 'b', batch, CROSS_ENTROPY)
      expect(after.loss).toBeLessThan(before.loss)
    })

    test('a checkpoint restores weights and optimizer, in this cell and another', async () => {
      await core.zeroGradients(epoch)
      await core.saveCheckpoint(epoch, folder)
      const batch = demonstration([5, 4, 3])
      const trainOn = async (cell: Cell): Promise<Float32Array[]> => {
        const seen: Float32Array[] = []
        for (const step of [0, 1]) {
          seen.push((await cell.forwardBackward(epoch, `ckpt-${step}`, batch, CROSS_ENTROPY)).logprobs)
          await cell.optimizerStep(epoch, `ckpt-${step}`, ADAM)
        }
        return seen
      }
      const original = await trainOn(core)
      await core.forwardBackward(epoch, 'stray', batch, CROSS_ENTROPY)
      await core.loadCheckpoint(epoch, folder, 9)
      await satellite.loadCheckpoint(epoch, folder, 9)
      expect((await satellite.hello()).policyVersion).toBe(9)
      expect(await trainOn(core)).toEqual(original)
      expect(await trainOn(satellite)).toEqual(original)
    })

    test('an unreachable peer fails the pull and leaves the weights as they were', async () => {
      const before = (await satellite.hello()).policyVersion
      await expect(satellite.pullWeights(epoch, join(folder, 'nobody.sock'), 99)).rejects.toMatchObject({
        code: 'E_CELL_UNREACHABLE',
        retryable: true,
      })
      expect((await satellite.hello()).policyVersion).toBe(before)
    })
  })
}
