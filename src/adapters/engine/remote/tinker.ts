/** @file Connects a server of the Tinker API: the service, or one of one's own. docs/engines.md says how. */
import { contextOf, engineOf, orClose, probed } from './connect.ts'
import { badOption, notUsable } from './failures.ts'
import { httpFor } from './options.ts'
import type { RemoteOptions } from './options.ts'
import type { ProbeHints } from './probe.ts'
import type { RemoteEngine } from './remote-engine.ts'
import { TinkerSession, tinkerKeyHeaders } from './tinker-session.ts'
import type { TinkerModel } from './tinker-session.ts'
import { TinkerWire } from './tinker-wire.ts'

const SLICE_TOKENS = 512
const RESULT_MS = 30 * 60_000
const HEARTBEAT_MS = 10_000

const HINTS: ProbeHints = {
  ids: 'Take a server that answers samples as JSON with tokens',
  logprobs: 'Take a server that gives the log-probs of what it samples',
  rawLogprobs: 'Set acceptProcessedLogprobs when every call samples at temperature 1 and without top-p and top-k',
  stopToken: 'Take a server that takes stop tokens by id and keeps them in the answer',
}

export type TinkerOptions = RemoteOptions &
  TinkerModel & {
    /** Tokens asked for at once: what a move may lose, and how often tokens arrive. Default 512. [tokens] */
    readonly sliceTokens?: number
    /** How often the server is told that the session is alive. Default 10 s. [ms] */
    readonly heartbeatMs?: number
  }

/**
 * The version of a checkpoint is the number at the end of its path, such as `tinker://run/sampler_weights/step-8`.
 * @throws GyreError E_ENGINE_PROBE when the server cannot be trained with, E_ENGINE_OPTION when the key is none,
 * E_ENGINE_UNREACHABLE when it is not there, E_ENGINE_UNAUTHORIZED when the key is wrong.
 */
export async function connectTinker(options: TinkerOptions): Promise<RemoteEngine> {
  const { sliceTokens = SLICE_TOKENS, idleTimeoutMs: resultMs = RESULT_MS, heartbeatMs = HEARTBEAT_MS } = options
  if (!(Number.isInteger(sliceTokens) && sliceTokens >= 1)) {
    throw badOption(`sliceTokens is ${sliceTokens}: it must be a positive whole number`)
  }
  const http = httpFor('Tinker', options, tinkerKeyHeaders(options.apiKey))
  const session = new TinkerSession(http, options, { resultMs, heartbeatMs })
  return orClose(session, async () => {
    const models = await session.models()
    const named = 'baseModel' in options ? models.find(({ name }) => name === options.baseModel) : undefined
    if ('baseModel' in options && named === undefined) {
      const names = models.map(({ name }) => name).join(', ')
      throw notUsable(http.where, `it has no model ${options.baseModel}`, `Take one of: ${names}`)
    }
    const shortest = Math.min(...models.map(({ maxContext }) => maxContext ?? Number.POSITIVE_INFINITY))
    const said = named?.maxContext ?? (Number.isFinite(shortest) ? shortest : undefined)
    const maxContext = contextOf(http.where, said, options.maxContext)
    const wire = new TinkerWire(session, sliceTokens)
    const found = await probed(wire, options, HINTS, false)
    const label = 'modelPath' in options ? options.modelPath : undefined
    return engineOf(wire, options, maxContext, { ...found, weightLabel: label })
  })
}
