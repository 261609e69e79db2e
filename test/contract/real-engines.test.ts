/**
 * The contract against real servers, where their base URLs are given: docs/engines.md says how to start them.
 * GYRE_TEST_SGLANG, GYRE_TEST_VLLM, GYRE_TEST_TINKER; the model's vocabulary and context in GYRE_TEST_VOCAB and
 * GYRE_TEST_CONTEXT.
 */
import { describe, expect, test } from 'vitest'
import { connectSglang } from '../../src/adapters/engine/remote/sglang.ts'
import { connectTinker } from '../../src/adapters/engine/remote/tinker.ts'
import { connectVllm } from '../../src/adapters/engine/remote/vllm.ts'
import type { RemoteEngine } from '../../src/adapters/engine/remote/remote-engine.ts'
import { engineId } from '../../src/core/ids.ts'
import type { EngineId } from '../../src/core/ids.ts'
import { describeEngineContract } from '../../src/ports/engine.contract.ts'

const vocabSize = Number(process.env['GYRE_TEST_VOCAB'] ?? 320)
const maxContext = Number(process.env['GYRE_TEST_CONTEXT'] ?? 2048)
const model = process.env['GYRE_TEST_TINKER_MODEL'] ?? ''

const CONNECT: Readonly<Record<string, (id: EngineId, baseUrl: string) => Promise<RemoteEngine>>> = {
  GYRE_TEST_SGLANG: async (id, baseUrl) => connectSglang({ id, baseUrl, vocabSize, maxContext }),
  GYRE_TEST_VLLM: async (id, baseUrl) => connectVllm({ id, baseUrl, vocabSize, maxContext }),
  GYRE_TEST_TINKER: async (id, baseUrl) =>
    connectTinker({ id, baseUrl, vocabSize, maxContext, apiKey: 'tml-dummy', baseModel: model, sliceTokens: 16 }),
}

for (const [name, connect] of Object.entries(CONNECT)) {
  const baseUrl = process.env[name]
  describe.skipIf(baseUrl === undefined)(`${name}=${baseUrl}`, () => {
    test('the start-up checks pass', async () => {
      const engine = await connect(engineId('probe'), baseUrl as string)
      expect(engine.capabilities.logprobs).toBe('raw')
      await engine.close()
    }, 120_000)

    describeEngineContract('the real server', async () => {
      const [engine, other] = [
        await connect(engineId('a'), baseUrl as string),
        await connect(engineId('b'), baseUrl as string),
      ]
      const alphabet = [3, 1, 4, 15, 9, 26]
      const close = async (): Promise<void> => {
        await Promise.all([engine.close(), other.close()])
      }
      return { engine, other, alphabet, vocabSize, maxContext, close }
    })
  })
}
