/** @file What one server's protocol has to offer, and the pieces that the protocols share. */
import type { ExecutionId } from '../../../core/ids.ts'
import type { SamplingParams } from '../../../ports/engine.ts'
import { malformed } from './failures.ts'

export interface WireRequest {
  /** Unique among all requests, and of the same length as every other: servers match by prefix. */
  readonly id: string
  readonly executionId: ExecutionId
  /** [T] */
  readonly promptIds: Int32Array
  /** `maxTokens` fits into the context. */
  readonly sampling: SamplingParams
}

/** Output tokens `[start, end)` were sampled by weights with this label. */
export interface WeightSpan {
  readonly label: string
  readonly start: number
  readonly end: number
}

/** A piece of a generation: only what is new. */
export interface WireChunk {
  readonly tokenIds: readonly number[]
  /** As many as `tokenIds`; NaN where the server gave none. [nats] */
  readonly logprobs: readonly number[]
  /** Weights that sampled these tokens, where the server says so. */
  readonly label?: string | undefined
  /** Weights of everything generated so far, where the server says so. */
  readonly spans?: readonly WeightSpan[] | undefined
  readonly finish?: WireFinish | undefined
  readonly cachedTokens?: number | undefined
}

export type WireFinish = { readonly kind: 'stop' | 'length' } | { readonly kind: 'broken'; readonly error: Error }

/** How a stream says what it has: the new tokens, everything so far, or one of each. */
export type StreamShape = 'delta' | 'cumulative' | 'mixed' | 'slices'

export interface Wire {
  /** For messages: which server, where. */
  readonly where: string
  /** The route that generates. */
  readonly route: string
  /** Of the streams seen so far. */
  readonly shape: StreamShape
  /**
   * One generation, the chunks that came together at once. Ends after its last chunk; a chunk with `finish` may be
   * followed by others.
   * @throws GyreError of boundary engine.
   */
  chunks(request: WireRequest, signal: AbortSignal): AsyncGenerator<readonly WireChunk[], void, undefined>
  /** Tells the server that nobody wants the rest. Never throws; returns within a bound of its own. */
  cancel(id: string): Promise<void>
  close(): Promise<void>
}

/** Largest magnitude that stands for "no value". [nats] */
const SENTINEL = -9999

/** A log-prob a server sent, or NaN when it is none: servers send a large negative number for "no value". */
export function evidence(logprob: unknown): number {
  const isReal = typeof logprob === 'number' && logprob <= 0 && logprob > SENTINEL
  return isReal ? logprob : Number.NaN
}

/**
 * Finds what is new in each frame of a stream, whether its lists hold everything so far or only the new part, and
 * although frames may come twice. The server's own count of tokens decides; frames that go missing are noticed.
 */
export class Tally {
  readonly #where: string
  #have = 0

  constructor(where: string) {
    this.#where = where
  }

  get have(): number {
    return this.#have
  }

  /**
   * @param ids of the frame; shorter than what is new only when `logprobs` is not. @param total tokens so far by the
   * server's count; undefined takes every id of the frame as new. @returns new tokens; log-probs it lacks are NaN.
   * @throws GyreError E_ENGINE_PROTOCOL when tokens are missing.
   */
  take(
    ids: readonly number[],
    logprobs: readonly number[],
    total: number | undefined,
  ): Pick<WireChunk, 'tokenIds' | 'logprobs'> {
    const fresh = total === undefined ? ids.length : Math.max(0, total - this.#have)
    if (fresh > ids.length) {
      throw malformed(
        this.#where,
        `${fresh} new tokens were counted and ${ids.length} token ids came: a part was lost or stripped`,
      )
    }
    this.#have += fresh
    const tokenIds = fresh === ids.length ? ids : ids.slice(ids.length - fresh)
    if (logprobs.length === fresh) return { tokenIds, logprobs }
    if (logprobs.length > fresh) return { tokenIds, logprobs: logprobs.slice(logprobs.length - fresh) }
    return { tokenIds, logprobs: tokenIds.map(() => Number.NaN) }
  }
}

/** The JSON object of an event. @throws GyreError E_ENGINE_PROTOCOL */
export function parsedEvent(where: string, data: string): Record<string, unknown> {
  try {
    const value = JSON.parse(data) as unknown
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  } catch {
    // Said below.
  }
  throw malformed(where, `an event of the stream is no JSON object: ${data.slice(0, 80)}`)
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

export function idsOf(where: string, value: unknown): readonly number[] {
  if (value === undefined || value === null) return []
  let isList = Array.isArray(value)
  for (const id of isList ? (value as readonly unknown[]) : []) isList &&= Number.isInteger(id) && (id as number) >= 0
  if (!isList) throw malformed(where, `token ids are no list of whole numbers: ${JSON.stringify(value).slice(0, 80)}`)
  return value as readonly number[]
}

export function countOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 ? value : undefined
}

/** `[{version, start, end}]` as both SGLang and vLLM send it. */
export function spansOf(value: unknown): readonly WeightSpan[] | undefined {
  if (!Array.isArray(value)) return undefined
  return value.flatMap((span: unknown) => {
    if (!isRecord(span)) return []
    const { version, start, end } = span
    return typeof start === 'number' && typeof end === 'number' ? [{ label: String(version), start, end }] : []
  })
}
