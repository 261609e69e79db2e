import fc from 'fast-check'
import { expect, test } from 'vitest'
import { byteCodec } from '../../../../test/support/byte-codec.ts'
import { GyreError } from '../../../core/errors.ts'
import { engineId, executionId } from '../../../core/ids.ts'
import type { AssistantItem } from '../../../core/items.ts'
import type { GenerateEvent, GenerateRequest } from '../../../ports/engine.ts'
import { ScriptedEngine, scriptedTurns } from './scripted.ts'
import type { ScriptedEngineOptions } from './scripted.ts'

const HI = { kind: 'user', text: 'hi' } as const

function turn(text: string): AssistantItem {
  return { kind: 'assistant', thinking: '', text, toolCalls: [] }
}

const TURNS = [turn('first words'), turn('second')]

function engine(options: Partial<ScriptedEngineOptions> = {}): ScriptedEngine {
  return new ScriptedEngine({ id: engineId('s'), script: scriptedTurns(byteCodec, TURNS), ...options })
}

function request(promptIds: Int32Array, maxTokens = 100): GenerateRequest {
  const sampling = { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: byteCodec.stopTokenIds, seed: 1 }
  return { requestId: 'r', executionId: executionId('x'), promptIds, sampling }
}

function opened(turns: readonly AssistantItem[]): Int32Array {
  const history = byteCodec.encodeConversation([HI, ...turns.flatMap((said) => [said, HI])])
  return Int32Array.from([...history, ...byteCodec.encodeGenerationPrompt()])
}

async function collect(events: AsyncIterable<GenerateEvent>): Promise<{ ids: number[]; finish: string }> {
  const ids: number[] = []
  let finish = ''
  for await (const event of events) {
    if (event.kind === 'tokens') ids.push(...event.tokenIds)
    else finish = event.finishReason
  }
  return { ids, finish }
}

const never = new AbortController().signal

test('the turn that is spoken follows from the context alone, also from the middle of it', async () => {
  const whole = await collect(engine().generate(request(opened(TURNS.slice(0, 1))), never))
  expect(whole).toEqual({ ids: [...byteCodec.encodeTurn(turn('second'))], finish: 'stop' })
  await fc.assert(
    fc.asyncProperty(fc.nat(11), fc.integer({ min: 1, max: 20 }), async (said, chunkTokens) => {
      const ids = [...byteCodec.encodeTurn(turn('first words'))]
      const resumed = Int32Array.from([...opened([]), ...ids.slice(0, said)])
      const rest = await collect(engine({ chunkTokens }).generate(request(resumed), never))
      expect(rest).toEqual({ ids: ids.slice(said), finish: 'stop' })
    }),
  )
})

test('the token bound ends a turn by length, and no room is an error', async () => {
  const prompt = opened([])
  expect(await collect(engine().generate(request(prompt, 3), never))).toMatchObject({ finish: 'length' })
  const full = engine({ maxContext: prompt.length }).generate(request(prompt), never)
  await expect(collect(full)).rejects.toMatchObject({ code: 'E_ENGINE_OVERLONG' })
})

test('a cancelled generation ends with the typed error, and its tokens stay valid', async () => {
  const controller = new AbortController()
  const seen: number[] = []
  const run = async (): Promise<void> => {
    const events = engine({ chunkTokens: 2, chunkDelayMs: 1 }).generate(request(opened([])), controller.signal)
    for await (const event of events) {
      if (event.kind === 'tokens') seen.push(...event.tokenIds)
      if (seen.length === 4) controller.abort()
    }
  }
  const error = await run().then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(GyreError)
  expect(error).toMatchObject({ code: 'E_ENGINE_CANCELLED', retryable: true })
  expect(seen).toEqual([...byteCodec.encodeTurn(turn('first words'))].slice(0, 4))
})
