/** @file Connects an SGLang server, or a router before several. docs/engines.md says how to start one. */
import { contextOf, engineWith, orClose, probed, routesOf, servedModel, versionsOf } from './connect.ts'
import type { OpenedServer } from './connect.ts'
import { fromStatus, notUsable } from './failures.ts'
import { wordsOf } from './http.ts'
import type { HttpClient } from './http.ts'
import { bearer, httpFor } from './options.ts'
import type { RemoteOptions } from './options.ts'
import type { ProbeHints } from './probe.ts'
import type { RemoteEngine } from './remote-engine.ts'
import { SGLANG_ROUTE, SglangWire } from './sglang-wire.ts'
import { isRecord } from './wire.ts'

const HINTS: ProbeHints = {
  ids: 'Connect to the server itself or to a router that passes /generate on unchanged',
  logprobs: 'Check that nothing in between removes return_logprob or meta_info.output_token_logprobs',
  rawLogprobs:
    'Start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1, or set acceptProcessedLogprobs when every call samples at temperature 1',
  stopToken: 'Check that nothing in between removes stop_token_ids or no_stop_trim from sampling_params',
}

/**
 * @throws GyreError E_ENGINE_PROBE when the server cannot be trained with, E_ENGINE_UNREACHABLE when it is not there,
 * E_ENGINE_UNAUTHORIZED when the key is wrong.
 */
export async function connectSglang(options: RemoteOptions): Promise<RemoteEngine> {
  return (await openSglang(options)).engine
}

/** `connectSglang` for those that also give it weights. */
export async function openSglang(options: RemoteOptions): Promise<OpenedServer> {
  const http = httpFor('SGLang', options, bearer(options.apiKey))
  return orClose(http, async () => {
    const routes = await routesOf(http)
    if (routes !== undefined && !routes.has(SGLANG_ROUTE)) {
      throw notUsable(http.where, 'it has no route /generate', 'Is it an SGLang server? Give the base URL without /v1')
    }
    await checkModel(http)
    const maxContext = contextOf(http.where, await contextSaid(http), options.maxContext)
    const wire = new SglangWire(http)
    const found = await probed(wire, options, HINTS)
    const versions = versionsOf(options, found)
    return { engine: engineWith(versions, wire, options, maxContext, found), versions, http, routes }
  })
}

async function checkModel(http: HttpClient): Promise<void> {
  const info = (await record(http, '/model_info')) ?? (await record(http, '/get_model_info'))
  if (info?.['is_generation'] === false) {
    throw notUsable(http.where, 'its model does not generate', 'Serve a causal language model')
  }
}

async function contextSaid(http: HttpClient): Promise<number | undefined> {
  const model = await servedModel(http)
  if (model?.maxContext !== undefined) return model.maxContext
  const info = (await record(http, '/server_info')) ?? (await record(http, '/get_server_info'))
  const length = info?.['context_length'] ?? info?.['max_req_input_len']
  return typeof length === 'number' ? length : undefined
}

async function record(http: HttpClient, path: string): Promise<Record<string, unknown> | undefined> {
  const { status, body } = await http.json('GET', path)
  if (status === 401 || status === 403) throw fromStatus(http.where, status, wordsOf(body) ?? '')
  return status === 200 && isRecord(body) ? body : undefined
}
