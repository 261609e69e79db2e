/** @file Gives an SGLang server weights from disk. */
import type { OpenedServer } from './connect.ts'
import { fromStatus, notLoaded, notUsable } from './failures.ts'
import { wordsOf } from './http.ts'
import type { HttpClient } from './http.ts'
import type { RemoteOptions } from './options.ts'
import { openSglang } from './sglang.ts'
import { RemoteStandaloneEngine } from './standalone.ts'
import type { WeightRoutes } from './standalone.ts'
import { labelFor, LOAD_MS, orCloseEngine } from './weights.ts'
import { isRecord } from './wire.ts'

const UPDATE_ROUTE = '/update_weights_from_disk'

/** One call: it aborts what runs, loads, drops the cached prefixes, and goes on. */
const SGLANG_WEIGHTS: WeightRoutes = {
  async load(http, { folder, policyVersion }, signal) {
    const body = { model_path: folder, abort_all_requests: true, weight_version: labelFor(policyVersion) }
    const answer = await http.json('POST', UPDATE_ROUTE, { body, signal, timeoutMs: LOAD_MS })
    const isDone = answer.status === 200 && isRecord(answer.body) && answer.body['success'] !== false
    if (!isDone) throw notLoaded(http.where, folder, wordsOf(answer.body) ?? `status ${answer.status}`)
    return labelOf(http, signal)
  },
  label: labelOf,
}

/** The server answers this at once, also while it generates. */
async function labelOf(http: HttpClient, signal?: AbortSignal): Promise<string | undefined> {
  for (const path of ['/model_info', '/get_model_info']) {
    const { status, body } = await http.json('GET', path, signal === undefined ? {} : { signal })
    if (status === 404) continue
    if (status !== 200 || !isRecord(body)) throw fromStatus(http.where, status, wordsOf(body) ?? '')
    const label = body['weight_version']
    return typeof label === 'string' || typeof label === 'number' ? String(label) : undefined
  }
  return undefined
}

/** @throws GyreError as `connectSglang`, and E_ENGINE_PROBE when it cannot be given weights. */
export async function standaloneSglang(
  options: RemoteOptions & { readonly slots: number },
): Promise<RemoteStandaloneEngine> {
  const opened: OpenedServer = await openSglang(options)
  return orCloseEngine(opened, () => {
    if (opened.routes?.has(UPDATE_ROUTE) === false) {
      const mend = 'Connect to the server itself: a router may not pass it on'
      throw notUsable(opened.http.where, `it has no route ${UPDATE_ROUTE} to load weights`, mend)
    }
    return new RemoteStandaloneEngine(opened, SGLANG_WEIGHTS, options.slots)
  })
}
