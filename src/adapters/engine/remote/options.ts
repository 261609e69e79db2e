/** @file What every remote engine is told when it is connected. */
import type { EngineId } from '../../../core/ids.ts'
import { badOption } from './failures.ts'
import { HttpClient } from './http.ts'

const CONNECT_MS = 10_000
const ANSWER_MS = 30_000
/** A long prompt in a long queue says nothing for minutes. [ms] */
const IDLE_MS = 30 * 60_000
/** Ids that every vocabulary has. */
const PROBE_IDS: readonly number[] = [1, 2, 3, 4]

export interface RemoteOptions {
  readonly id: EngineId
  /** Scheme, host, port and an optional path before every route, such as `http://127.0.0.1:30000`. */
  readonly baseUrl: string
  readonly apiKey?: string
  /** Added to every request. */
  readonly headers?: Readonly<Record<string, string>>
  /**
   * Version of the weights where the server does not name it by a number. Default 0. A label such as `v7` or `step-8`
   * is the number at its end.
   */
  readonly policyVersion?: number
  /** Reads the server's label of its weights; undefined falls back to `policyVersion`. */
  readonly versionOf?: (label: string) => number | undefined
  /** Ids of the tokenizer; a server that samples others is refused. [tokens] */
  readonly vocabSize?: number
  /** Where the server does not say it, or says too much. [tokens] */
  readonly maxContext?: number
  /**
   * Serve although the log-probs follow the temperature or leave truncated tokens out. They are then NaN, which is
   * not trained on, in every call that samples at another temperature than 1 or truncates. Default false: refuse.
   */
  readonly acceptProcessedLogprobs?: boolean
  /** Prompt of the start-up checks. Default: four ids that every vocabulary has. */
  readonly probeIds?: readonly number[]
  /** Default 10 s. [ms] */
  readonly connectTimeoutMs?: number
  /** How long a call that generates nothing may take. Default 30 s. [ms] */
  readonly answerTimeoutMs?: number
  /** How long a generation may be silent, from its request on. It has no other limit. Default 30 min. [ms] */
  readonly idleTimeoutMs?: number
}

export function probeIdsOf(options: RemoteOptions): Int32Array {
  return Int32Array.from(options.probeIds ?? PROBE_IDS)
}

/** @throws GyreError E_ENGINE_OPTION */
export function httpFor(
  name: string,
  options: RemoteOptions,
  keyHeaders: Readonly<Record<string, string>>,
): HttpClient {
  const { connectTimeoutMs = CONNECT_MS, answerTimeoutMs = ANSWER_MS, idleTimeoutMs = IDLE_MS } = options
  for (const [key, ms] of Object.entries({ connectTimeoutMs, answerTimeoutMs, idleTimeoutMs })) {
    if (!(ms > 0 && ms < 2 ** 31)) throw badOption(`${key} is ${ms}: give milliseconds, more than 0 and below 2^31`)
  }
  return new HttpClient(name, {
    baseUrl: options.baseUrl,
    headers: { ...keyHeaders, ...options.headers },
    connectTimeoutMs,
    answerTimeoutMs,
    idleTimeoutMs,
  })
}

export function bearer(apiKey: string | undefined): Readonly<Record<string, string>> {
  return apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }
}
