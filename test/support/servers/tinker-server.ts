/** @file A server that speaks the sampling half of the Tinker API: sessions, futures, polls; over a toy model. */
import { BaseServer, json, pause } from './base-server.ts'
import type { BaseOptions, Fault, Route } from './base-server.ts'
import { SENTINEL, TOY_EOS, generateToy } from './toy-model.ts'
import type { ToyLogprobs, ToySampling } from './toy-model.ts'

export interface TinkerServerOptions extends BaseOptions {
  readonly logprobs?: ToyLogprobs | 'none'
  readonly maxContext?: number
  readonly isContextSaid?: boolean
  /** What polls answer before the result, in turn; then the result. Default none. */
  readonly polls?: readonly PollAnswer[]
  /** How long a future takes. Default 0. [ms] */
  readonly resultDelayMs?: number
  /** Whether `cancel_future` exists. Default true. */
  readonly cancels?: boolean
}

export type PollAnswer = 'pending' | 'try-again' | 'lost' | 'busy' | 'broken' | 'metadata'

interface Future {
  readonly result: Promise<unknown>
  polls: number
  isCancelled: boolean
}

/** `requests` of its `aborted` are the futures that were cancelled. */
export class TinkerServer extends BaseServer {
  /** Sessions that are open; a restart forgets them. */
  readonly sessions = new Set<string>()
  heartbeats = 0

  constructor(options: TinkerServerOptions) {
    super(options, (server) => routesOf(server as TinkerServer, options))
  }
}

export async function startTinkerServer(options: TinkerServerOptions = {}): Promise<TinkerServer> {
  const server = new TinkerServer(options)
  await server.listen()
  return server
}

function routesOf(server: TinkerServer, options: TinkerServerOptions): Record<string, Route> {
  const futures = new Map<string, Future>()
  let count = 0
  return {
    '/api/v1/get_server_capabilities': (_, response) => {
      const length = options.isContextSaid === false ? {} : { max_context_length: options.maxContext ?? 512 }
      json(response, 200, { supported_models: [{ model_name: 'toy/model', ...length }] })
    },
    '/api/v1/create_session': (_, response) =>
      json(response, 200, { type: 'create_session', session_id: `session-${++count}` }),
    '/api/v1/session_heartbeat': (_, response) => {
      server.heartbeats++
      json(response, 200, { type: 'session_heartbeat' })
    },
    '/api/v1/create_sampling_session': (body, response) => {
      const id = `${String(body['session_id'])}:${String(body['sampling_session_seq_id'])}`
      server.sessions.add(id)
      json(response, 200, { type: 'create_sampling_session', sampling_session_id: id })
    },
    '/api/v1/asample': (body, response) => {
      const fault = server.nextFault()
      if (fault?.kind === 'status') {
        json(response, fault.status, fault.body)
        return
      }
      if (!server.sessions.has(String(body['sampling_session_id']))) {
        json(response, 404, { detail: 'Sampling session not found' })
        return
      }
      const id = String(++count)
      const future: Future = { result: Promise.resolve(), polls: 0, isCancelled: false }
      const result = server.generating(async () => {
        for (let ms = options.resultDelayMs ?? 0; ms > 0 && !future.isCancelled; ms -= 5) await pause(5)
      })
      futures.set(id, Object.assign(future, { result: result.then(() => sampleResult(body, options, fault)) }))
      json(response, 200, { future_id: id, status: 'pending', request_id: id })
    },
    '/api/v1/retrieve_future': async (body, response) => {
      const future = futures.get(String(body['request_id']))
      if (future === undefined) json(response, 404, { detail: 'Future not found' })
      else if (!refusePoll(response, options.polls?.[future.polls++])) {
        const result = await future.result
        if (result === 'die') response.socket?.resetAndDestroy()
        else if (typeof result === 'string') json(response, 400, { detail: result })
        else json(response, 200, result)
      }
    },
    ...(options.cancels === false
      ? {}
      : {
          '/api/v1/cancel_future': (body, response) => {
            const id = String(body['request_id'])
            server.aborted.push(id)
            const future = futures.get(id)
            if (future !== undefined) future.isCancelled = true
            json(response, 200, {})
          },
        }),
  }
}

const POLL_ANSWERS: Readonly<Record<PollAnswer, readonly [status: number, body: unknown]>> = {
  pending: [408, { type: 'try_again', queue_state: 'active' }],
  'try-again': [200, { type: 'try_again', request_id: '1', queue_state: 'paused_capacity' }],
  metadata: [200, { status: 'complete_metadata', response_payload_size: 9 }],
  lost: [410, { detail: 'Promise expired' }],
  busy: [429, { detail: 'slow down' }],
  broken: [502, 'bad gateway'],
}

/** @returns true when the poll was answered otherwise than with the result. */
function refusePoll(response: Parameters<Route>[1], answer: PollAnswer | undefined): boolean {
  if (answer === undefined) return false
  json(response, ...POLL_ANSWERS[answer])
  return true
}

/** The result, `die`, or the words of a refusal. */
function sampleResult(body: Record<string, unknown>, options: TinkerServerOptions, fault: Fault | undefined): unknown {
  if (fault?.kind === 'die') return 'die'
  if (fault?.kind === 'error-event') return { error: 'the worker crashed', category: 'server' }
  const chunks = (body['prompt'] as { chunks: { tokens: number[] }[] }).chunks
  const prompt = chunks.flatMap(({ tokens }) => tokens)
  const given = body['sampling_params'] as Record<string, unknown>
  const max = options.maxContext ?? 512
  if (prompt.length + Number(given['max_tokens']) > max) {
    return `Prompt length plus max_tokens exceeds the model's context length of ${max}`
  }
  const semantics = options.logprobs === 'none' ? 'raw' : (options.logprobs ?? 'raw')
  const { tokens, finish } = generateToy(prompt, samplingOf(given), semantics, 'per-call', options.script)
  const logprobs = tokens.map(({ logprob }, i) =>
    fault?.kind === 'sentinel' && fault.atToken === i ? SENTINEL : logprob,
  )
  const sequence = { tokens: tokens.map(({ id }) => id), stop_reason: finish }
  return {
    type: 'sample',
    sequences: [options.logprobs === 'none' ? sequence : { ...sequence, logprobs }],
    prompt_logprobs: null,
    prompt_cache_hit_tokens: Math.min(4, prompt.length),
  }
}

function samplingOf(given: Record<string, unknown>): ToySampling {
  return {
    maxTokens: Number(given['max_tokens']),
    temperature: Number(given['temperature'] ?? 1),
    topP: Number(given['top_p'] ?? 1),
    topK: Number(given['top_k'] ?? -1),
    seed: Number(given['seed'] ?? 0),
    // Without a list the model's own end counts.
    stopIds: (given['stop'] as number[] | undefined) ?? [TOY_EOS],
  }
}
