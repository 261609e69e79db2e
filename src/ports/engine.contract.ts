/** @file What every Engine must do, wherever its tokens come from. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { executionId } from '../core/ids.ts'
import type { Engine, GenerateEvent, SamplingParams } from './engine.ts'

export interface EngineSubject {
  readonly engine: Engine
  /** Another instance with the same weights, which a generation can move to. */
  readonly other: Engine
  /** Ids that the prompts are made of. */
  readonly alphabet: readonly number[]
  readonly vocabSize: number
  /** [tokens] */
  readonly maxContext: number
  /** Generations the other side still works on; undefined where it cannot be asked. */
  readonly running?: () => number | Promise<number>
  close(): Promise<void>
}

export interface Collected {
  readonly tokenIds: number[]
  readonly logprobs: number[]
  readonly policyVersions: number[]
  end?: Extract<GenerateEvent, { kind: 'end' }>
  error?: unknown
}

/** The most likely token each time: the same on every instance. */
export const GREEDY = { topK: 1, temperature: 1 } as const

export function generateRequest(promptIds: readonly number[], sampling: Partial<SamplingParams> = {}) {
  return {
    requestId: 'contract',
    executionId: executionId('x-1'),
    promptIds: Int32Array.from(promptIds),
    sampling: { maxTokens: 16, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 7, ...sampling },
  }
}

/** Everything one generation yields; an error is kept beside what came before it. */
export async function collectEvents(
  engine: Engine,
  promptIds: readonly number[],
  sampling: Partial<SamplingParams> = {},
  options: { readonly signal?: AbortSignal; readonly onTokens?: (soFar: Collected) => void } = {},
): Promise<Collected> {
  const out: Collected = { tokenIds: [], logprobs: [], policyVersions: [] }
  const signal = options.signal ?? new AbortController().signal
  try {
    for await (const event of engine.generate(generateRequest(promptIds, sampling), signal)) {
      if (out.end !== undefined) throw new Error('an event came after the end')
      if (event.kind === 'end') {
        out.end = event
        continue
      }
      out.tokenIds.push(...event.tokenIds)
      out.logprobs.push(...event.logprobs)
      out.policyVersions.push(...event.policyVersions)
      options.onTokens?.(out)
    }
  } catch (error) {
    out.error = error
  }
  return out
}

async function untilIdle(running: EngineSubject['running']): Promise<void> {
  if (running === undefined) return
  for (const end = Date.now() + 10_000; (await running()) > 0; await new Promise((r) => setTimeout(r, 10))) {
    if (Date.now() > end) throw new Error('the other side still works on a generation that was left')
  }
}

/** Runs the conformance tests. `start` is called once; the tests share the subject and run in order. */
export function describeEngineContract(name: string, start: () => Promise<EngineSubject>): void {
  describe(`${name} keeps the engine contract`, () => {
    let subject: EngineSubject
    let prompt: readonly number[]
    beforeAll(async () => {
      subject = await start()
      prompt = Array.from({ length: 6 }, (_, i) => subject.alphabet[i % subject.alphabet.length] as number)
    }, 120_000)
    afterAll(async () => subject.close())

    test('tokens, log-probs and versions go together, and the end comes once and last', async () => {
      const { tokenIds, logprobs, policyVersions, end, error } = await collectEvents(subject.engine, prompt)
      expect(error).toBeUndefined()
      expect([logprobs.length, policyVersions.length]).toEqual([tokenIds.length, tokenIds.length])
      expect(tokenIds.every((id) => Number.isInteger(id) && id >= 0 && id < subject.vocabSize)).toBe(true)
      expect(logprobs.every((logprob) => Number.isFinite(logprob) && logprob <= 0)).toBe(true)
      expect(policyVersions.every((version) => Number.isInteger(version) && version >= 0)).toBe(true)
      expect(end).toMatchObject({ kind: 'end' })
      expect(end?.cachedTokens).toBeGreaterThanOrEqual(0)
    })

    test.each([1, 2, 9])('%i tokens are as many as were asked for', async (maxTokens) => {
      const { tokenIds, end, error } = await collectEvents(subject.engine, prompt, { maxTokens })
      expect(error).toBeUndefined()
      expect([tokenIds.length, end?.finishReason]).toEqual([maxTokens, 'length'])
    })

    test('a stop token ends the generation and is its last token', async () => {
      const whole = await collectEvents(subject.engine, prompt, GREEDY)
      const stop = whole.tokenIds[5] as number
      const upToStop = whole.tokenIds.slice(0, whole.tokenIds.indexOf(stop) + 1)
      const stopped = await collectEvents(subject.engine, prompt, { ...GREEDY, stopTokenIds: [stop] })
      expect(stopped.tokenIds).toEqual(upToStop)
      expect(stopped.end?.finishReason).toBe('stop')
    })

    test('log-probs are those of the raw distribution, at any temperature', async () => {
      const cold = await collectEvents(subject.engine, prompt, { ...GREEDY, topK: 0, topP: 1e-6 })
      const hot = await collectEvents(subject.engine, prompt, { topP: 1e-6, temperature: 2 })
      expect(hot.tokenIds).toEqual(cold.tokenIds)
      hot.logprobs.forEach((logprob, i) => expect(logprob).toBeCloseTo(cold.logprobs[i] as number, 1))
    })

    test('a generation goes on from its partial tokens on another instance', async () => {
      const whole = await collectEvents(subject.engine, prompt, GREEDY)
      for (const at of [1, 7]) {
        const partial = [...prompt, ...whole.tokenIds.slice(0, at)]
        const rest = await collectEvents(subject.other, partial, { ...GREEDY, maxTokens: 16 - at })
        expect(rest.tokenIds).toEqual(whole.tokenIds.slice(at))
      }
    })

    test('a prompt without room is refused, and one with room for a token gets it', async () => {
      const full = Array.from({ length: subject.maxContext }, (_, i) => prompt[i % prompt.length] as number)
      const { tokenIds, error } = await collectEvents(subject.engine, full)
      expect(tokenIds).toEqual([])
      expect(error).toMatchObject({ code: 'E_ENGINE_OVERLONG', retryable: false })
      const last = await collectEvents(subject.engine, full.slice(1))
      expect(last.error).toBeUndefined()
      expect([last.tokenIds.length, last.end?.finishReason]).toEqual([1, 'length'])
    })

    test('cancelling ends it with a typed error, keeps its tokens, and stops the other side', async () => {
      const controller = new AbortController()
      const onTokens = ({ tokenIds }: Collected): void => void (tokenIds.length >= 4 && controller.abort())
      const sampling = { ...GREEDY, maxTokens: subject.maxContext - 64 }
      const cut = await collectEvents(subject.engine, prompt, sampling, { signal: controller.signal, onTokens })
      expect(cut.error).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
      expect(cut.end).toBeUndefined()
      const whole = await collectEvents(subject.other, prompt, { ...GREEDY, maxTokens: cut.tokenIds.length })
      expect(cut.tokenIds).toEqual(whole.tokenIds)
      await untilIdle(subject.running)
    })

    test('one that was cancelled before it began does not begin', async () => {
      const cut = await collectEvents(subject.engine, prompt, {}, { signal: AbortSignal.abort() })
      expect(cut.tokenIds).toEqual([])
      expect(cut.error).toMatchObject({ code: 'E_ENGINE_CANCELLED' })
    })

    test('a consumer that stops listening stops the other side', async () => {
      const request = generateRequest(prompt, { maxTokens: subject.maxContext - 64 })
      for await (const event of subject.engine.generate(request, new AbortController().signal)) {
        expect(event.kind).toBe('tokens')
        break
      }
      await untilIdle(subject.running)
    })

    test('generations side by side do not mix', async () => {
      const prompts = [0, 1, 2, 3, 4, 5].map((i) => [...prompt.slice(i), ...prompt.slice(0, i), ...prompt.slice(0, i)])
      const alone: number[][] = []
      for (const ids of prompts) alone.push((await collectEvents(subject.engine, ids, GREEDY)).tokenIds)
      const together = await Promise.all(prompts.map(async (ids) => collectEvents(subject.engine, ids, GREEDY)))
      expect(together.map(({ tokenIds }) => tokenIds)).toEqual(alone)
    })
  })
}
