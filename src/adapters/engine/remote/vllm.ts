/** @file Connects a vLLM server, or a router before several. docs/engines.md says how to start one. */
import { GyreError } from '../../../core/errors.ts'
import { contextOf, engineWith, orClose, probed, routesOf, servedModel, versionsOf } from './connect.ts'
import type { OpenedServer } from './connect.ts'
import { fromStatus, notUsable } from './failures.ts'
import type { HttpClient } from './http.ts'
import { wordsOf } from './http.ts'
import { bearer, httpFor } from './options.ts'
import type { RemoteOptions } from './options.ts'
import type { ProbeHints, Probed } from './probe.ts'
import type { RemoteEngine } from './remote-engine.ts'
import { COMPLETIONS_ROUTE, CompletionsWire, TOKENS_ROUTE, TokensWire } from './vllm-wire.ts'
import { isRecord } from './wire.ts'
import type { Wire } from './wire.ts'

const HINTS: ProbeHints = {
  ids: 'Start it with --enable-scale-out, or take a version whose /v1/completions knows return_token_ids',
  logprobs: 'Start it without a limit on log-probs: --max-logprobs must not be 0',
  rawLogprobs:
    'Start it with --logprobs-mode raw_logprobs, or set acceptProcessedLogprobs when every call samples at temperature 1 and without top-p and top-k',
  stopToken: 'Check that nothing in between removes stop_token_ids or ignore_eos',
}

export interface VllmOptions extends RemoteOptions {
  /** Which of the served models; default the first. */
  readonly model?: string
}

/**
 * Takes the token-in token-out route where there is one, else completions that return token ids.
 * @throws GyreError E_ENGINE_PROBE when the server cannot be trained with, E_ENGINE_UNREACHABLE when it is not there,
 * E_ENGINE_UNAUTHORIZED when the key is wrong.
 */
export async function connectVllm(options: VllmOptions): Promise<RemoteEngine> {
  return (await openVllm(options)).engine
}

/** `connectVllm` for those that also give it weights. */
export async function openVllm(options: VllmOptions): Promise<OpenedServer> {
  const http = httpFor('vLLM', options, bearer(options.apiKey))
  return orClose(http, async () => {
    const routes = await routesOf(http)
    await checkKey(http)
    const served = await servedModel(http)
    const maxContext = contextOf(http.where, served?.maxContext, options.maxContext)
    const { wire, found } = await firstUsable(http, routes, options, options.model ?? served?.name ?? '')
    const label = found.weightLabel ?? (await labelOf(http, routes))
    const labelled = { ...found, weightLabel: label }
    const versions = versionsOf(options, labelled)
    return { engine: engineWith(versions, wire, options, maxContext, labelled), versions, http, routes }
  })
}

async function checkKey(http: HttpClient): Promise<void> {
  const { status, body } = await http.json('GET', '/v1/models')
  if (status !== 200) throw fromStatus(http.where, status, wordsOf(body) ?? '')
}

async function firstUsable(
  http: HttpClient,
  routes: ReadonlySet<string> | undefined,
  options: RemoteOptions,
  model: string,
): Promise<{ readonly wire: Wire; readonly found: Probed }> {
  const wires = [new TokensWire(http, model), new CompletionsWire(http, model)]
  let reason: GyreError | undefined
  for (const wire of wires) {
    if (routes !== undefined && !routes.has(wire.route)) continue
    try {
      return { wire, found: await probed(wire, options, HINTS) }
    } catch (error) {
      if (!isRefusal(error)) throw error
      reason = error
    }
  }
  if (reason?.code === 'E_ENGINE_PROBE') throw reason
  const missing = `neither ${TOKENS_ROUTE} nor ${COMPLETIONS_ROUTE} gives token ids`
  throw notUsable(http.where, missing, HINTS.ids, reason)
}

/** The route is not there, does not know what it was asked, or does not give what is needed. */
function isRefusal(error: unknown): error is GyreError {
  return error instanceof GyreError && (error.code === 'E_ENGINE_PROBE' || error.code === 'E_ENGINE_REQUEST')
}

/** Development servers name their weights before anything was generated. */
async function labelOf(http: HttpClient, routes: ReadonlySet<string> | undefined): Promise<string | undefined> {
  if (routes?.has('/weight_info') !== true) return undefined
  const { status, body } = await http.json('GET', '/weight_info')
  const label = status === 200 && isRecord(body) ? body['weight_version'] : undefined
  return typeof label === 'string' ? label : undefined
}
