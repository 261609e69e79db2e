/** @file The one engine of a gateway that serves traces only. */
import { readFileSync } from 'node:fs'
import { connectSglang } from '../../adapters/engine/remote/sglang.ts'
import { connectTinker } from '../../adapters/engine/remote/tinker.ts'
import { connectVllm } from '../../adapters/engine/remote/vllm.ts'
import { ScriptedEngine } from '../../adapters/engine/scripted/scripted.ts'
import { GyreError } from '../../core/errors.ts'
import { engineId } from '../../core/ids.ts'
import type { Engine } from '../../ports/engine.ts'
import { parseScenario } from '../../recording/scenario.ts'
import { scenarioScript } from '../../recording/scenario-script.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import type { HarnessProfile } from '../../trajectory/profile.ts'

export interface EngineChoice {
  /** `sglang`, `vllm`, `tinker`, or `scripted:SCENARIO.yaml`. */
  readonly engine: string
  readonly url: string | undefined
  readonly apiKey: string | undefined
  /** Which model the engine is to serve, where it has several. */
  readonly model: string | undefined
  /** Bound for the context, where the engine has none or a larger one. [tokens] */
  readonly context: number | undefined
  readonly acceptProcessedLogprobs: boolean
  readonly codec: ChatCodec
  readonly profile: HarnessProfile
}

export interface ChosenEngine {
  readonly engine: Engine
  /** [tokens] */
  readonly maxContext: number
  /** One line on what was found. */
  readonly found: string
  close(): Promise<void>
}

const ID = engineId('engine')
const SCRIPTED = /^scripted:(.+)$/

/** @throws GyreError E_CONFIG_ENGINE, E_CONFIG_SCENARIO, or what the engine's own checks refuse. */
export async function chooseEngine(choice: EngineChoice): Promise<ChosenEngine> {
  const scenario = SCRIPTED.exec(choice.engine)?.[1]
  return scenario === undefined ? remoteEngine(choice) : scriptedEngine(scenario, choice)
}

function scriptedEngine(file: string, { codec, profile, context }: EngineChoice): ChosenEngine {
  const scenario = parseScenario(readFileSync(file, 'utf8'), file)
  const engine = new ScriptedEngine({ id: ID, script: scenarioScript(scenario, codec, profile) })
  const maxContext = context ?? scenario.contextWindow
  return { engine, maxContext, found: `the scenario ${scenario.name}`, close: () => Promise.resolve() }
}

async function remoteEngine(choice: EngineChoice): Promise<ChosenEngine> {
  const { engine: kind, url, apiKey, model, context, acceptProcessedLogprobs, codec } = choice
  if (url === undefined) throw wrongEngine(`--engine ${kind} needs --url, such as http://127.0.0.1:30000`)
  const options = {
    id: ID,
    baseUrl: url,
    vocabSize: codec.vocabSize,
    acceptProcessedLogprobs,
    ...(apiKey === undefined ? {} : { apiKey }),
    ...(context === undefined ? {} : { maxContext: context }),
  }
  const connect = {
    sglang: async () => connectSglang(options),
    vllm: async () => connectVllm({ ...options, ...(model === undefined ? {} : { model }) }),
    tinker: async () => connectTinker({ ...options, ...tinkerModel(model) }),
  }
  if (!isRemote(kind)) {
    throw wrongEngine(`there is no engine "${kind}": take sglang, vllm, tinker or scripted:SCENARIO.yaml`)
  }
  const engine = await connect[kind]()
  const { route, logprobs, maxContext } = engine.capabilities
  const found = `${kind} at ${url}: ${route}, log-probs ${logprobs}, ${maxContext} tokens of context`
  return { engine, maxContext, found, close: async () => engine.close() }
}

function isRemote(kind: string): kind is 'sglang' | 'vllm' | 'tinker' {
  return ['sglang', 'vllm', 'tinker'].includes(kind)
}

/** A checkpoint by its path, a base model by its name. */
function tinkerModel(model: string | undefined): { readonly baseModel: string } | { readonly modelPath: string } {
  if (model === undefined) {
    throw wrongEngine('--engine tinker needs --engine-model: a base model, or the path of a checkpoint (tinker://...)')
  }
  return model.startsWith('tinker://') ? { modelPath: model } : { baseModel: model }
}

function wrongEngine(message: string): GyreError {
  return new GyreError(message, { boundary: 'config', code: 'E_CONFIG_ENGINE' })
}
