/** @file Gives a vLLM server weights from disk, over the routes it has in development mode. */
import { fromStatus, notLoaded, notUsable } from './failures.ts'
import { wordsOf } from './http.ts'
import type { HttpClient } from './http.ts'
import { RemoteStandaloneEngine } from './standalone.ts'
import type { WeightRoutes } from './standalone.ts'
import { openVllm } from './vllm.ts'
import type { VllmOptions } from './vllm.ts'
import { labelFor, LOAD_MS, orCloseEngine } from './weights.ts'
import { isRecord } from './wire.ts'

const NEEDED = ['/pause', '/resume', '/collective_rpc', '/reset_prefix_cache'] as const
const NAMING = ['/update_weight_version', '/weight_info'] as const
const MEND = 'Start vllm serve with VLLM_SERVER_DEV_MODE=1, and let nobody else reach its port'

/** What runs is aborted; no cached prefix outlives the weights it was computed with. */
const VLLM_WEIGHTS: WeightRoutes = {
  async load(http, { folder, policyVersion }, signal) {
    await call(http, '/pause?mode=abort', undefined, signal)
    let isLoaded = false
    try {
      const reload = { method: 'reload_weights', kwargs: { weights_path: folder } }
      const answer = await http.json('POST', '/collective_rpc', { body: reload, signal, timeoutMs: LOAD_MS })
      if (answer.status !== 200) throw notLoaded(http.where, folder, wordsOf(answer.body) ?? `status ${answer.status}`)
      const reset = await call(http, '/reset_prefix_cache?reset_running_requests=true', undefined, signal)
      if (isRecord(reset) && reset['success'] === false) {
        throw notLoaded(http.where, folder, 'its prefix cache could not be dropped')
      }
      await call(http, '/update_weight_version', { new_version: labelFor(policyVersion) }, signal)
      isLoaded = true
    } finally {
      // It must not stay paused for whoever comes next, also when this call was given up.
      const resumed = call(http, '/resume')
      await (isLoaded ? resumed : resumed.catch(() => undefined))
    }
    return labelOf(http, signal)
  },
  label: labelOf,
}

/** @throws GyreError of what the status means. */
async function call(http: HttpClient, path: string, body?: unknown, signal?: AbortSignal): Promise<unknown> {
  const given = { ...(body === undefined ? {} : { body }), ...(signal === undefined ? {} : { signal }) }
  const answer = await http.json('POST', path, given)
  if (answer.status !== 200) throw fromStatus(http.where, answer.status, wordsOf(answer.body) ?? '')
  return answer.body
}

async function labelOf(http: HttpClient, signal?: AbortSignal): Promise<string | undefined> {
  const { status, body } = await http.json('GET', '/weight_info', signal === undefined ? {} : { signal })
  if (status !== 200) throw fromStatus(http.where, status, wordsOf(body) ?? '')
  const label = isRecord(body) ? body['weight_version'] : undefined
  return typeof label === 'string' ? label : undefined
}

/** @throws GyreError as `connectVllm`, and E_ENGINE_PROBE when it cannot be given weights. */
export async function standaloneVllm(
  options: VllmOptions & { readonly slots: number },
): Promise<RemoteStandaloneEngine> {
  const opened = await openVllm(options)
  return orCloseEngine(opened, () => {
    const missing = [...NEEDED, ...NAMING].filter((route) => opened.routes?.has(route) !== true)
    if (missing.length > 0) {
      throw notUsable(opened.http.where, `it cannot be given weights: it has no ${missing.join(', ')}`, MEND)
    }
    return new RemoteStandaloneEngine(opened, VLLM_WEIGHTS, options.slots)
  })
}
