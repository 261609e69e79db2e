import { afterEach, describe, expect, test } from 'vitest'
import {
  closeEngines,
  pack,
  randomIds,
  type Row,
  sample,
  score,
  start,
} from '../../../../test/support/embedded-engines.ts'
import { hasCode } from '../../../core/errors.ts'
import { seededRng } from '../../../core/rng.ts'

afterEach(closeEngines)

describe('sampling', () => {
  test('a continuation from the prompt and a part of the answer gives the rest of it', async () => {
    const engine = await start()
    const prompt = randomIds(1, 30)
    const whole = await sample(engine, prompt, { temperature: 0.8, topP: 0.9, topK: 20 })
    const other = await start()
    const rest = await sample(other, [...prompt, ...whole.ids.slice(0, 25)], {
      temperature: 0.8,
      topP: 0.9,
      topK: 20,
      maxTokens: 35,
    })
    expect(rest.ids).toEqual(whole.ids.slice(25))
    expect(rest.logprobs).toEqual(whole.logprobs.slice(25))
  })

  test('a shared prefix is computed once, and changes no bit', async () => {
    const engine = await start({ slots: 3 })
    const system = randomIds(1, 150)
    const first = await sample(engine, [...system, 0, ...randomIds(2, 20)])
    expect(first.cachedTokens).toBe(0)
    const prompts = [3, 4, 5].map((seed) => [...system, seed, ...randomIds(seed, 30)])
    const reused = await Promise.all(prompts.map((p) => sample(engine, p)))
    expect(reused.map((s) => s.cachedTokens)).toEqual([150, 150, 150])
    for (const [i, prompt] of prompts.entries()) {
      const fresh = await sample(await start({ slots: 1 }), prompt)
      expect(fresh.cachedTokens).toBe(0)
      expect(reused[i]?.ids).toEqual(fresh.ids)
      expect(reused[i]?.logprobs).toEqual(fresh.logprobs)
    }
  })

  test('prompts that come together compute their shared prefix once', async () => {
    const engine = await start()
    const system = randomIds(1, 300)
    const all = await Promise.all(
      [1, 2, 3, 4].map((x) => sample(engine, [...system, x, ...randomIds(x, 20)], { seed: x })),
    )
    const cached = all.map((s) => s.cachedTokens).sort((a, b) => a - b)
    expect(cached[0]).toBe(0)
    expect(cached[1]).toBeGreaterThan(300 - 32)
  })

  test('the next turn of a conversation reuses the whole of the last one', async () => {
    const engine = await start()
    const prompt = randomIds(1, 40)
    const turn = await sample(engine, prompt)
    const next = await sample(engine, [...prompt, ...turn.ids, ...randomIds(2, 9)])
    expect(next.cachedTokens).toBe(99)
  })

  test('conversations that fork, stop and come back under memory pressure keep every bit', async () => {
    const engine = await start({ slots: 3, maxContext: 96, threads: 2 })
    const rng = seededRng(5)
    const histories: number[][] = [randomIds(1, 21)]
    const done: Row[] = []
    let reused = 0
    const worker = async (): Promise<void> => {
      for (let i = 0; i < 25; i++) {
        const history = histories[rng.below(histories.length)] ?? []
        const prompt = [
          ...history.slice(0, 1 + rng.below(history.length)),
          ...randomIds(rng.below(1e6), 1 + rng.below(12)),
        ]
        if (prompt.length > 80) continue
        const controller = new AbortController()
        if (rng.below(5) === 0) setTimeout(() => controller.abort(), rng.below(3))
        try {
          const sampled = await sample(engine, prompt, { maxTokens: 1 + rng.below(20), seed: i }, controller.signal)
          reused += sampled.cachedTokens
          const row = { ids: [...prompt, ...sampled.ids], from: prompt.length }
          histories.push(row.ids)
          done.push(row)
          if (done.length % 3 > 0) continue
          expect(await score(engine, pack([row]))).toEqual(sampled.logprobs)
        } catch (error) {
          if (!hasCode(error, 'E_ENGINE_CANCELLED')) throw error
        }
      }
    }
    await Promise.all([worker(), worker(), worker(), worker(), worker()])
    expect(done.length).toBeGreaterThan(40)
    expect(reused).toBeGreaterThan(done.length * 5)
  })

  test('more generations than slots all finish', async () => {
    const engine = await start({ slots: 2 })
    const all = await Promise.all([...Array(9).keys()].map((i) => sample(engine, randomIds(i, 10 + i), { seed: i })))
    expect(all.map((s) => s.ids.length)).toEqual(Array(9).fill(60))
  })

  test('a stop token ends the answer and is part of it', async () => {
    const engine = await start()
    const free = await sample(engine, randomIds(1, 10))
    const stop = free.ids[20] ?? 0
    const stopped = await sample(engine, randomIds(1, 10), { stopTokenIds: [stop] })
    expect(stopped.finishReason).toBe('stop')
    expect(stopped.ids).toEqual(free.ids.slice(0, free.ids.indexOf(stop) + 1))
  })

  test('an answer ends with the context, and a prompt that fills it is refused', async () => {
    const engine = await start({ maxContext: 64 })
    const last = await sample(engine, randomIds(1, 60))
    expect([last.ids.length, last.finishReason]).toEqual([4, 'length'])
    await expect(sample(engine, randomIds(1, 64))).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_OVERLONG'))
    await expect(sample(engine, [])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_REQUEST'))
    await expect(sample(engine, [99])).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_REQUEST'))
  })

  test('a cancelled generation ends with its code and frees its slot', async () => {
    const engine = await start({ slots: 1 })
    const controller = new AbortController()
    let seen = 0
    const cancelled = sample(engine, randomIds(1, 20), { maxTokens: 400 }, controller.signal, (s) => {
      seen = s.ids.length
      controller.abort()
    })
    await expect(cancelled).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CANCELLED'))
    expect(seen).toBeGreaterThan(0)
    expect((await sample(engine, randomIds(2, 20))).ids).toHaveLength(60)
    await expect(sample(engine, [1], {}, controller.signal)).rejects.toSatisfy((e) => hasCode(e, 'E_ENGINE_CANCELLED'))
  })

  test('temperature 0 takes the likeliest token, and a low temperature comes close to it', async () => {
    const engine = await start()
    const greedy = await sample(engine, randomIds(1, 20), { temperature: 0 })
    const cold = await sample(engine, randomIds(1, 20), { temperature: 1e-4 })
    const top1 = await sample(engine, randomIds(1, 20), { topK: 1 })
    expect(cold.ids).toEqual(greedy.ids)
    expect(top1.ids).toEqual(greedy.ids)
  })

  test('new weights drop every cache, stamp tokens, and carry a running generation on', async () => {
    const engine = await start()
    const prompt = randomIds(1, 50)
    const before = await sample(engine, prompt)
    expect(new Set(before.versions)).toEqual(new Set([0]))
    const other = await (await start({ seed: 77 })).exportWeights()
    let published: Promise<void> | undefined
    const running = await sample(engine, randomIds(8, 50), { maxTokens: 400 }, undefined, () => {
      published ??= engine.importWeights(other, 3)
    })
    await published
    expect(new Set(running.versions)).toEqual(new Set([0, 3]))
    const after = await sample(engine, prompt)
    expect(after.cachedTokens).toBe(0)
    expect(new Set(after.versions)).toEqual(new Set([3]))
    expect(after.logprobs).toEqual((await sample(await start({ seed: 77 }), prompt)).logprobs)
    const switched = running.versions.indexOf(3)
    const path = [...randomIds(8, 50), ...running.ids]
    expect((await score(engine, pack([{ ids: path, from: 50 + switched }]))).slice(0, 30)).toEqual(
      running.logprobs.slice(switched, switched + 30),
    )
    expect(engine.policyVersion).toBe(3)
  })
})
