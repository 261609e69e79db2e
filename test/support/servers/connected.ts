/** @file Engine servers with the adapter connected, for every protocol that streams. */
import type { RemoteOptions } from '../../../src/adapters/engine/remote/options.ts'
import type { RemoteEngine } from '../../../src/adapters/engine/remote/remote-engine.ts'
import { connectSglang } from '../../../src/adapters/engine/remote/sglang.ts'
import { connectTinker } from '../../../src/adapters/engine/remote/tinker.ts'
import type { TinkerOptions } from '../../../src/adapters/engine/remote/tinker.ts'
import { connectVllm } from '../../../src/adapters/engine/remote/vllm.ts'
import { engineId } from '../../../src/core/ids.ts'
import type { BaseOptions, BaseServer } from './base-server.ts'
import { startSglangServer } from './sglang-server.ts'
import type { SglangServerOptions } from './sglang-server.ts'
import { startTinkerServer } from './tinker-server.ts'
import type { TinkerServer, TinkerServerOptions } from './tinker-server.ts'
import { TOY_VOCAB } from './toy-model.ts'
import { startVllmServer } from './vllm-server.ts'
import type { VllmServerOptions } from './vllm-server.ts'

export interface Connected<S extends BaseServer = BaseServer> extends AsyncDisposable {
  readonly server: S
  readonly engine: RemoteEngine
}

export type StreamingStart = (server?: BaseOptions, engine?: Partial<RemoteOptions>) => Promise<Connected>

/** Every streaming protocol and shape. */
export const STREAMING: readonly (readonly [name: string, start: StreamingStart])[] = [
  ['SGLang, cumulative', async (s, e) => connectedSglang({ shape: 'cumulative', ...s }, e)],
  ['SGLang, incremental', async (s, e) => connectedSglang({ shape: 'delta', ...s }, e)],
  ['SGLang, mixed', async (s, e) => connectedSglang({ shape: 'mixed', ...s }, e)],
  ['vLLM, tokens', async (s, e) => connectedVllm({ ...s }, e)],
  ['vLLM, completions', async (s, e) => connectedVllm({ isScaleOut: false, ...s }, e)],
]

export async function connectedSglang(
  options: SglangServerOptions = {},
  engine: Partial<RemoteOptions> = {},
): Promise<Connected> {
  const server = await startSglangServer({ logprobs: 'raw', ...quiet(options) })
  return connected(server, options, async () => connectSglang({ ...common(server), ...engine }))
}

export async function connectedVllm(
  options: VllmServerOptions = {},
  engine: Partial<RemoteOptions> = {},
): Promise<Connected> {
  const server = await startVllmServer(quiet(options))
  return connected(server, options, async () => connectVllm({ ...common(server), ...engine }))
}

export async function connectedTinker(
  options: TinkerServerOptions = {},
  engine: Partial<TinkerOptions> = {},
): Promise<Connected<TinkerServer>> {
  const server = await startTinkerServer(quiet(options))
  const model = 'modelPath' in engine ? {} : { baseModel: 'toy/model' }
  const fields = { ...common(server), apiKey: 'tml-test', sliceTokens: 4, ...model, ...engine } as TinkerOptions
  return connected(server, options, async () => connectTinker(fields))
}

function common(server: BaseServer) {
  return { id: engineId('remote'), baseUrl: server.baseUrl, vocabSize: TOY_VOCAB }
}

/** Faults, cuts and polls begin with the test, after the start-up checks. */
function quiet<T extends BaseOptions>(options: T): T {
  return { ...options, fault: undefined, cut: undefined, polls: undefined, pieceDelayMs: 0, resultDelayMs: 0 }
}

async function connected<S extends BaseServer>(
  server: S,
  options: BaseOptions,
  connect: () => Promise<RemoteEngine>,
): Promise<Connected<S>> {
  try {
    const engine = await connect()
    Object.assign(server.options, options)
    server.forgetCalls()
    const close = async (): Promise<void> => {
      await engine.close()
      await server.close()
    }
    return { server, engine, [Symbol.asyncDispose]: close }
  } catch (error) {
    await server.close()
    throw error
  }
}
