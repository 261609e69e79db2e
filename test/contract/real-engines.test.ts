/**
 * The contract against real servers, where their base URLs are given: docs/engines.md says how to start them.
 * GYRE_TEST_SGLANG, GYRE_TEST_VLLM, GYRE_TEST_TINKER; the model's vocabulary and context in GYRE_TEST_VOCAB and
 * GYRE_TEST_CONTEXT. Two folders of weights that the server can see, `A,B` in GYRE_TEST_WEIGHTS, are given to it in turn.
 */
import { describe, expect, test } from 'vitest'
import { standaloneSglang } from '../../src/adapters/engine/remote/sglang-weights.ts'
import { connectSglang } from '../../src/adapters/engine/remote/sglang.ts'
import { connectTinker } from '../../src/adapters/engine/remote/tinker.ts'
import { connectVllm } from '../../src/adapters/engine/remote/vllm.ts'
import { standaloneVllm } from '../../src/adapters/engine/remote/vllm-weights.ts'
import type { RemoteEngine } from '../../src/adapters/engine/remote/remote-engine.ts'
import { engineId } from '../../src/core/ids.ts'
import type { EngineId } from '../../src/core/ids.ts'
import { collectEvents, describeEngineContract } from '../../src/ports/engine.contract.ts'

const vocabSize = Number(process.env['GYRE_TEST_VOCAB'] ?? 320)
const maxContext = Number(process.env['GYRE_TEST_CONTEXT'] ?? 2048)
/** Separated by a comma. */
const folders = (process.env['GYRE_TEST_WEIGHTS'] ?? '').split(',').filter((folder) => folder !== '')
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

    test.skipIf(folders.length < 2 || name === 'GYRE_TEST_TINKER')(
      'it takes weights from disk, and gives each version its tokens',
      async () => {
        const options = { id: engineId('taking'), baseUrl: baseUrl as string, vocabSize, maxContext, slots: 4 }
        const engine = await (name === 'GYRE_TEST_VLLM' ? standaloneVllm(options) : standaloneSglang(options))
        const said: string[] = []
        for (const [i, folder] of [folders[0], folders[1], folders[0]].entries()) {
          await engine.takeFolder({ folder: folder as string, policyVersion: i + 1 }, new AbortController().signal)
          const events = await collectEvents(engine, [3, 1, 4, 15, 9, 26], { topP: 1e-6, maxTokens: 6 })
          expect(new Set(events.policyVersions)).toEqual(new Set([i + 1]))
          said.push(events.tokenIds.join(' '))
        }
        await engine.close()
        expect(said[0]).not.toBe(said[1])
        expect(said[2]).toBe(said[0])
      },
      120_000,
    )

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
