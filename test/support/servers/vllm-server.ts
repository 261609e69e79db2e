/** @file A server that speaks vLLM's token-in token-out API and its completions with token ids, over a toy model. */
import { BaseServer, EventStream, json } from './base-server.ts'
import type { BaseOptions, Route } from './base-server.ts'
import { event } from './sglang-server.ts'
import { sendTokens } from './token-stream.ts'
import type { FrameParts } from './token-stream.ts'
import { TOY_EOS, TOY_VOCAB, generateToy } from './toy-model.ts'
import type { ToyLogprobs, ToySampling } from './toy-model.ts'

export interface VllmServerOptions extends BaseOptions {
  /** `--enable-scale-out`. Default true. */
  readonly isScaleOut?: boolean
  /** Whether completions know `return_token_ids`. Default true. */
  readonly returnsTokenIds?: boolean
  /** `--logprobs-mode`; `raw` is the default of the real one. */
  readonly logprobs?: ToyLogprobs | 'none'
  readonly maxModelLen?: number
  readonly weightVersion?: string
  readonly changesAt?: { readonly token: number; readonly version: string }
  readonly chunkTokens?: number
  /** Old releases: words for ids, no counts, and chunks without tokens left out. */
  readonly isOld?: boolean
  readonly trimsStop?: boolean
  readonly listsRoutes?: boolean
  readonly lineEnd?: '\n' | '\r\n'
}

const TOKENS = '/inference/v1/generate'
const COMPLETIONS = '/v1/completions'

export async function startVllmServer(options: VllmServerOptions = {}): Promise<BaseServer> {
  const routes = (server: BaseServer): Record<string, Route> => ({
    ...(options.isScaleOut === false
      ? {}
      : {
          [TOKENS]: async (body, response) => generate(server, options, TOKENS, body, response),
          '/inference/v1/abort_requests': (body, response) => {
            server.aborted.push(...(body['request_ids'] as string[]))
            json(response, 200, '')
          },
        }),
    [COMPLETIONS]: async (body, response) => generate(server, options, COMPLETIONS, body, response),
    '/v1/models': (_, response) => {
      const max = options.maxModelLen ?? 512
      json(response, 200, { object: 'list', data: [{ id: 'tiny', object: 'model', max_model_len: max }] })
    },
    ...(options.load === undefined ? {} : developmentRoutes(server, options)),
    ...(options.listsRoutes === false
      ? { '/openapi.json': (_body, response) => json(response, 404, { detail: 'Not Found' }) }
      : {}),
  })
  return new BaseServer(options, routes).listen()
}

const done: Route = (_, response) => json(response, 200, { success: true })

/** What `VLLM_SERVER_DEV_MODE=1` adds, as 0.32 answers. */
function developmentRoutes(server: BaseServer, options: VllmServerOptions): Record<string, Route> {
  return {
    '/pause': done,
    '/resume': done,
    '/reset_prefix_cache': done,
    '/collective_rpc': (body, response) => {
      const { weights_path: folder } = body['kwargs'] as { weights_path: string }
      try {
        options.load?.(folder)
        json(response, 200, { results: [null] })
      } catch (error) {
        json(response, 500, { error: { message: `Call to collective_rpc method failed: ${String(error)}` } })
      }
    },
    '/update_weight_version': (body, response) => {
      server.label = body['new_version'] as string
      json(response, 200, { success: true, new_version: server.label })
    },
    '/weight_info': (_, response) => json(response, 200, { weight_version: server.label ?? 'default' }),
  }
}

async function generate(
  server: BaseServer,
  options: VllmServerOptions,
  route: string,
  body: Record<string, unknown>,
  response: Parameters<Route>[1],
): Promise<void> {
  const fault = server.nextFault()
  if (fault?.kind === 'status') {
    json(response, fault.status, fault.body)
    return
  }
  if (body['model'] !== 'tiny') {
    const error = {
      message: `The model \`${String(body['model'])}\` does not exist.`,
      type: 'NotFoundError',
      code: 404,
    }
    json(response, 404, { error })
    return
  }
  const isTokens = route === TOKENS
  const ids = body[isTokens ? 'token_ids' : 'prompt'] as number[]
  const given = (isTokens ? body['sampling_params'] : body) as Record<string, unknown>
  const id = isTokens ? `generate-tokens-${String(body['request_id'])}` : `cmpl-${String(body['request_id'])}`
  const max = options.maxModelLen ?? 512
  const problem = problemOf(ids, max, options.script === undefined ? TOY_VOCAB : Number.POSITIVE_INFINITY)
  const stream = new EventStream(response, options)
  const frameOf = (value: unknown): string => event(value, options.lineEnd)
  const errorFrame = (message: string, code: number): string =>
    frameOf({ error: { message, type: 'InternalServerError', param: null, code } })
  if (problem !== undefined) {
    await stream.write(errorFrame(problem, 400))
    await stream.write('data: [DONE]\n\n')
    stream.end()
    return
  }
  const semantics = options.logprobs === 'none' ? 'raw' : (options.logprobs ?? 'raw')
  const generation = generateToy(
    ids,
    samplingOf(given, max - ids.length),
    semantics,
    'per-call',
    options.script,
    options.weights,
  )
  const isTrimmed = options.trimsStop === true && generation.finish === 'stop'
  const sent = isTrimmed ? { ...generation, tokens: generation.tokens.slice(0, -1) } : generation
  let isFirst = true
  await server.generating(async () =>
    sendTokens(stream, sent, fault, {
      chunkTokens: options.chunkTokens ?? 1,
      frame: (parts) => {
        // Old releases had no chunk for an end without tokens.
        if (options.isOld === true && parts.fresh.length === 0) return ': \n\n'
        const promptIds = isFirst && body['return_token_ids'] === true ? ids : undefined
        isFirst = false
        const choice = isTokens
          ? tokensChoice(parts, given, {
              ...options,
              ...(server.label === undefined ? {} : { weightVersion: server.label }),
            })
          : completionsChoice(parts, promptIds, given, options)
        const usage = usageOf(ids.length, parts.all.length)
        const isCounted = (body['stream_options'] as Record<string, unknown> | undefined)?.['continuous_usage_stats']
        return frameOf({
          ...(isTokens ? { request_id: id, output_mode: 'tokens' } : { id, object: 'text_completion', model: 'tiny' }),
          choices: [{ index: 0, ...choice }],
          usage: isCounted === true && options.isOld !== true ? usage : null,
        })
      },
      errorFrame,
      tail: () => frameOf({ request_id: id, choices: [], usage: usageOf(ids.length, sent.tokens.length) }),
      isAborted: () => server.aborted.includes(id),
    }),
  )
}

function problemOf(ids: readonly number[], max: number, vocabSize: number): string | undefined {
  const foreign = ids.find((id) => id >= vocabSize)
  if (foreign !== undefined) return `Token id ${foreign} is out of vocabulary`
  if (ids.length < max) return undefined
  return (
    `The decoder prompt (length ${ids.length}) plus the number of requested output tokens (at least 1) is longer ` +
    `than the maximum model length of ${max}.`
  )
}

function samplingOf(given: Record<string, unknown>, room: number): ToySampling {
  return {
    maxTokens: Math.min((given['max_tokens'] as number | undefined) ?? 16, room),
    temperature: (given['temperature'] as number | undefined) ?? 1,
    topP: (given['top_p'] as number | undefined) ?? 1,
    topK: (given['top_k'] as number | undefined) ?? -1,
    seed: (given['seed'] as number | undefined) ?? 0,
    stopIds: [
      ...(given['ignore_eos'] === true ? [] : [TOY_EOS]),
      ...((given['stop_token_ids'] as number[] | undefined) ?? []),
    ],
  }
}

function tokensChoice(parts: FrameParts, given: Record<string, unknown>, options: VllmServerOptions) {
  const { all, fresh, finish } = parts
  const { weightVersion = 'default', changesAt } = options
  const isChanged = changesAt !== undefined && all.length > changesAt.token
  const spans = isChanged
    ? [
        { version: weightVersion, start: 0, end: changesAt.token },
        { version: changesAt.version, start: changesAt.token, end: all.length },
      ]
    : [{ version: weightVersion, start: 0, end: all.length }]
  const content = fresh.map(({ id, logprob }) =>
    options.isOld === true
      ? { token: `token_id:${id}`, logprob, bytes: null, top_logprobs: [] }
      : { token_id: id, logprob, rank: 1, top_logprobs: [] },
  )
  const hasLogprobs = given['logprobs'] !== undefined && options.logprobs !== 'none'
  return {
    finish_reason: finish ?? null,
    token_ids: fresh.map(({ id }) => id),
    logprobs: hasLogprobs ? { content } : null,
    ...(options.isOld === true ? {} : { weight_versions: finish === undefined ? null : spans }),
  }
}

function completionsChoice(
  { fresh, finish }: FrameParts,
  promptIds: readonly number[] | undefined,
  given: Record<string, unknown>,
  options: VllmServerOptions,
) {
  const hasLogprobs = given['logprobs'] !== undefined && options.logprobs !== 'none'
  const isTold = options.returnsTokenIds !== false && given['return_token_ids'] === true
  return {
    text: 'wörd 词 ',
    finish_reason: finish ?? null,
    logprobs: hasLogprobs
      ? {
          token_logprobs: fresh.map(({ logprob }) => logprob),
          tokens: fresh.map(({ id }) => `token_id:${id}`),
          text_offset: [],
        }
      : null,
    ...(isTold ? { token_ids: fresh.map(({ id }) => id), prompt_token_ids: promptIds ?? null } : {}),
  }
}

function usageOf(promptTokens: number, completionTokens: number): unknown {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: Math.min(3, promptTokens) },
  }
}
