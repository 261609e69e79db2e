import { connectSglang } from '../../src/adapters/engine/remote/sglang.ts'
import { connectTinker } from '../../src/adapters/engine/remote/tinker.ts'
import { connectVllm } from '../../src/adapters/engine/remote/vllm.ts'
import { ScriptedEngine } from '../../src/adapters/engine/scripted/scripted.ts'
import { engineId } from '../../src/core/ids.ts'
import { describeEngineContract } from '../../src/ports/engine.contract.ts'
import type { Engine } from '../../src/ports/engine.ts'
import type { EngineSubject } from '../../src/ports/engine.contract.ts'
import type { RemoteEngine } from '../../src/adapters/engine/remote/remote-engine.ts'
import { SHAPE, closeEngines, start as startEmbedded } from '../support/embedded-engines.ts'
import type { BaseServer } from '../support/servers/base-server.ts'
import { startSglangServer } from '../support/servers/sglang-server.ts'
import type { SglangServerOptions } from '../support/servers/sglang-server.ts'
import { startTinkerServer } from '../support/servers/tinker-server.ts'
import { TOY_VOCAB } from '../support/servers/toy-model.ts'
import { startVllmServer } from '../support/servers/vllm-server.ts'
import type { VllmServerOptions } from '../support/servers/vllm-server.ts'

const ALPHABET = [3, 1, 4, 15, 9, 26]
const MAX_CONTEXT = 512
const script = (ids: Int32Array): number[] =>
  Array.from({ length: MAX_CONTEXT }, (_, i) => ((ids.length + i) * 7 + (ids[0] as number)) % 50)
/** Slow enough that a generation can be left in its middle. [ms] */
const PIECE_MS = 1

describeEngineContract('a scripted engine', async () => {
  return { ...ordinary, engine: scripted('a'), other: scripted('b'), close: async () => undefined }
})

describeEngineContract('an embedded engine', async () => {
  const [engine, other] = [await embedded('a'), await embedded('b')]
  return { ...ordinary, vocabSize: SHAPE.vocabSize, engine, other, close: closeEngines }
})

describeEngineContract('SGLang, cumulative', async () => sglang({ shape: 'cumulative' }))
describeEngineContract('SGLang, incremental', async () => sglang({ shape: 'delta', chunkTokens: 3 }))
describeEngineContract('SGLang, ids incremental and log-probs cumulative', async () => sglang({ shape: 'mixed' }))
describeEngineContract('SGLang that does not count', async () => sglang({ shape: 'cumulative', countsTokens: false }))
describeEngineContract('vLLM, tokens in and out', async () => vllm({ weightVersion: 'v3' }))
describeEngineContract('vLLM, an old release', async () => vllm({ isOld: true, chunkTokens: 4 }))
describeEngineContract('vLLM, completions with token ids', async () => vllm({ isScaleOut: false }))

describeEngineContract('Tinker', async () => {
  const servers = [await startTinkerServer({ resultDelayMs: 5 }), await startTinkerServer()]
  return remote(servers, async (baseUrl, id) =>
    connectTinker({ id, baseUrl, apiKey: 'tml-test', baseModel: 'toy/model', sliceTokens: 5, vocabSize: TOY_VOCAB }),
  )
})

const ordinary = { alphabet: ALPHABET, vocabSize: TOY_VOCAB, maxContext: MAX_CONTEXT }

function scripted(name: string): Engine {
  const options = { script, maxContext: MAX_CONTEXT, chunkTokens: 3, logprob: (id: number) => -id / 50 }
  return new ScriptedEngine({ id: engineId(name), ...options })
}

async function embedded(name: string): Promise<Engine> {
  const engine = await startEmbedded()
  return { id: engineId(name), generate: (request, signal) => engine.generate(request, signal) }
}

async function sglang(options: SglangServerOptions): Promise<EngineSubject> {
  const start = async (): Promise<BaseServer> =>
    startSglangServer({ logprobs: 'raw', pieceDelayMs: PIECE_MS, ...options })
  return remote([await start(), await start()], async (baseUrl, id) =>
    connectSglang({ id, baseUrl, vocabSize: TOY_VOCAB }),
  )
}

async function vllm(options: VllmServerOptions): Promise<EngineSubject> {
  const start = async (): Promise<BaseServer> => startVllmServer({ pieceDelayMs: PIECE_MS, ...options })
  return remote([await start(), await start()], async (baseUrl, id) =>
    connectVllm({ id, baseUrl, vocabSize: TOY_VOCAB }),
  )
}

async function remote(
  servers: readonly BaseServer[],
  connect: (baseUrl: string, id: ReturnType<typeof engineId>) => Promise<RemoteEngine>,
): Promise<EngineSubject> {
  const [engine, other] = await Promise.all(servers.map(async ({ baseUrl }, i) => connect(baseUrl, engineId(`e${i}`))))
  if (engine === undefined || other === undefined) throw new Error('two servers are needed')
  return {
    ...ordinary,
    engine,
    other,
    running: () => servers.reduce((sum, server) => sum + server.running(), 0),
    close: async () => {
      await Promise.all([engine.close(), other.close()])
      await Promise.all(servers.map(async (server) => server.close()))
    },
  }
}
