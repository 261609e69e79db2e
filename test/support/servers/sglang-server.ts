/** @file A server that speaks SGLang's native API as its documents and its 0.5 releases have it, over a toy model. */
import { BaseServer, EventStream, json } from './base-server.ts'
import type { BaseOptions, Route } from './base-server.ts'
import { sendTokens } from './token-stream.ts'
import type { FrameParts } from './token-stream.ts'
import { TOY_EOS, generateToy } from './toy-model.ts'
import type { ToyLogprobs } from './toy-model.ts'

export interface SglangServerOptions extends BaseOptions {
  /** `cumulative` is the default of the real one; `mixed` its older incremental mode. */
  readonly shape?: 'cumulative' | 'delta' | 'mixed'
  /** `scaled` is the default of the real one. */
  readonly logprobs?: ToyLogprobs | 'none'
  readonly contextLength?: number
  readonly weightVersion?: string
  /** Weights change after so many tokens of each generation; the frames say so. */
  readonly changesAt?: { readonly token: number; readonly version: string }
  readonly chunkTokens?: number
  /** False for very old servers. */
  readonly countsTokens?: boolean
  readonly stripsIds?: boolean
  readonly trimsStop?: boolean
  readonly hasGenerate?: boolean
  readonly lineEnd?: '\n' | '\r\n'
}

export async function startSglangServer(options: SglangServerOptions = {}): Promise<BaseServer> {
  const routes = (server: BaseServer): Record<string, Route> => ({
    ...(options.hasGenerate === false
      ? {}
      : { '/generate': async (body, response) => generate(server, options, body, response) }),
    '/abort_request': (body, response) => {
      server.aborted.push(String(body['rid']))
      json(response, 200, '')
    },
    ...(options.load === undefined
      ? {}
      : {
          '/update_weights_from_disk': (body, response) => {
            try {
              options.load?.(body['model_path'] as string)
              server.label = body['weight_version'] as string
              json(response, 200, { success: true, message: 'Succeeded to update model weights.' })
            } catch (error) {
              json(response, 400, { success: false, message: String(error) })
            }
          },
        }),
    '/model_info': (_, response) =>
      json(response, 200, {
        model_path: 'toy',
        is_generation: true,
        weight_version: server.label ?? options.weightVersion,
      }),
    '/v1/models': (_, response) =>
      json(response, 200, { object: 'list', data: [{ id: 'toy', max_model_len: options.contextLength ?? 512 }] }),
  })
  return new BaseServer(options, routes).listen()
}

async function generate(
  server: BaseServer,
  options: SglangServerOptions,
  body: Record<string, unknown>,
  response: Parameters<Route>[1],
): Promise<void> {
  const fault = server.nextFault()
  if (fault?.kind === 'status') {
    json(response, fault.status, fault.body)
    return
  }
  const ids = body['input_ids'] as number[]
  const rid = body['rid'] as string
  const given = (body['sampling_params'] ?? {}) as Record<string, unknown>
  const context = options.contextLength ?? 512
  const stream = new EventStream(response, options)
  const frameOf = (value: unknown): string => event(value, options.lineEnd)
  const errorFrame = (message: string, code: number): string => frameOf({ error: { message, code } })
  if (ids.length >= context) {
    const message = `The input (${ids.length} tokens) is longer than the model's context length (${context} tokens).`
    await stream.write(errorFrame(message, 400))
    await stream.write('data: [DONE]\n\n')
    stream.end()
    return
  }
  const semantics = options.logprobs === 'none' ? 'raw' : (options.logprobs ?? 'scaled')
  const generation = generateToy(
    ids,
    {
      maxTokens: Math.min((given['max_new_tokens'] as number | undefined) ?? 128, context - ids.length),
      temperature: (given['temperature'] as number | undefined) ?? 1,
      topP: (given['top_p'] as number | undefined) ?? 1,
      topK: (given['top_k'] as number | undefined) ?? -1,
      seed: (given['sampling_seed'] as number | undefined) ?? 0,
      stopIds: given['ignore_eos'] === true ? [] : [TOY_EOS, ...((given['stop_token_ids'] as number[]) ?? [])],
    },
    semantics,
    'positional',
    options.script,
    options.weights,
  )
  const isTrimmed = options.trimsStop === true && generation.finish === 'stop'
  const sent = isTrimmed ? { ...generation, tokens: generation.tokens.slice(0, -1) } : generation
  await server.generating(async () =>
    sendTokens(stream, sent, fault, {
      chunkTokens: options.chunkTokens ?? 1,
      frame: (parts) => frameOf(answer(parts, rid, ids.length, body, { ...options, ...labelled(server) })),
      errorFrame,
      isAborted: () => server.aborted.some((prefix) => rid.startsWith(prefix)),
    }),
  )
}

function labelled({ label }: BaseServer): { readonly weightVersion?: string } {
  return label === undefined ? {} : { weightVersion: label }
}

function answer(
  { all, fresh, finish }: FrameParts,
  rid: string,
  promptTokens: number,
  body: Record<string, unknown>,
  options: SglangServerOptions,
): unknown {
  const { shape = 'cumulative', weightVersion = 'default', changesAt } = options
  const last = all.at(-1)
  const listed = shape === 'cumulative' ? all : fresh
  // An aborted stream forgets all but its last id.
  const outputIds = finish === 'abort' && last !== undefined ? [last.id] : listed.map(({ id }) => id)
  const given = shape === 'delta' ? fresh : all
  const logprobs = given.map(({ id, logprob }) => [logprob, id, null])
  const isChanged = changesAt !== undefined && all.length > changesAt.token
  const spans = isChanged
    ? [
        { version: weightVersion, start: 0, end: changesAt.token },
        { version: changesAt.version, start: changesAt.token, end: all.length },
      ]
    : [{ version: weightVersion, start: 0, end: all.length }]
  return {
    // The words of a token need not be whole characters.
    text: 'täxt 模型 👩‍💻'.slice(0, 1 + (all.length % 12)),
    ...(options.stripsIds === true ? {} : { output_ids: outputIds }),
    meta_info: {
      id: rid,
      finish_reason: finish === undefined ? null : finishReason(finish, last?.id, all.length),
      prompt_tokens: promptTokens,
      cached_tokens: Math.min(2, promptTokens),
      ...(options.countsTokens === false ? {} : { completion_tokens: all.length }),
      weight_version: spans.at(-1)?.version,
      ...(changesAt === undefined ? {} : { weight_versions: spans }),
      ...(options.logprobs === 'none' || options.stripsIds === true || body['return_logprob'] !== true
        ? {}
        : { output_token_logprobs: logprobs }),
    },
  }
}

function finishReason(finish: string, matched: number | undefined, length: number): unknown {
  if (finish === 'abort') return { type: 'abort', message: 'Aborted by AbortReq.' }
  return finish === 'stop' ? { type: 'stop', matched } : { type: 'length', length }
}

export function event(value: unknown, lineEnd: '\n' | '\r\n' = '\n'): string {
  return `data: ${JSON.stringify(value)}${lineEnd}${lineEnd}`
}
