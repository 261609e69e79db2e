/**
 * @file The start-up checks: a few short generations that show whether a server gives what training needs. What it
 * can do is found by asking it, never by its version.
 */
import { hasCode } from '../../../core/errors.ts'
import { executionId } from '../../../core/ids.ts'
import type { SamplingParams } from '../../../ports/engine.ts'
import { notUsable } from './failures.ts'
import { freshRequestId } from './remote-engine.ts'
import type { RemoteCapabilities } from './remote-engine.ts'
import type { Wire, WireFinish } from './wire.ts'

const TOKENS = 8
const DRAW_TOKENS = 12
/** Leaves the most likely token only, whatever the temperature, without the server noticing that it is greedy. */
const TINY_TOP_P = 1e-6
/** A log-prob below this is certain enough of its token to say nothing about scaling. [nats] */
const TELLING = 0.05

export interface ProbeHints {
  /** How to start the server so that token ids, log-probs, raw log-probs or the stop token come. */
  readonly ids: string
  readonly logprobs: string
  readonly rawLogprobs: string
  readonly stopToken: string
}

export interface ProbeOptions {
  readonly promptIds: Int32Array
  readonly vocabSize: number | undefined
  readonly acceptProcessedLogprobs: boolean
  /** False for a protocol whose draws are known to restart with every call. */
  readonly asksForSeeding: boolean
  readonly hints: ProbeHints
}

export type Probed = Pick<RemoteCapabilities, 'logprobs' | 'seeding' | 'reportsVersions' | 'weightLabel'>

interface Sample {
  readonly tokenIds: readonly number[]
  readonly logprobs: readonly number[]
  readonly finish: WireFinish | undefined
  readonly label: string | undefined
}

/** @throws GyreError E_ENGINE_PROBE when the server cannot be trained with, or what a generation threw. */
export async function probe(wire: Wire, options: ProbeOptions): Promise<Probed> {
  const { promptIds, hints } = options
  const controller = new AbortController()
  const ask = async (ids: Int32Array, sampling: Partial<SamplingParams>): Promise<Sample> =>
    sample(wire, ids, sampling, controller.signal)
  try {
    const plain = await ask(promptIds, {})
    checkSample(wire.where, plain, options)
    const [cold, hot] = await Promise.all(
      [1, 2].map(async (temperature) => ask(promptIds, { temperature, topP: TINY_TOP_P })),
    )
    const logprobs = semanticsOf(plain, cold as Sample, hot as Sample)
    if ((logprobs === 'scaled' || logprobs === 'truncated') && !options.acceptProcessedLogprobs) {
      const how = logprobs === 'scaled' ? 'follow the temperature' : 'leave truncated tokens out'
      throw notUsable(wire.where, `its log-probs ${how}, so they are not those of the policy`, hints.rawLogprobs)
    }
    await checkStop(wire.where, cold as Sample, options, ask)
    const seeding = options.asksForSeeding ? await seedingOf(promptIds, ask) : 'per-call'
    return { logprobs, seeding, reportsVersions: plain.label !== undefined, weightLabel: plain.label }
  } catch (error) {
    // An answer that breaks the protocol here will break it always: something in between changes it.
    if (!hasCode(error, 'E_ENGINE_PROTOCOL')) throw error
    throw notUsable(wire.where, `its stream cannot be followed (${error.message})`, hints.ids, error)
  } finally {
    controller.abort()
  }
}

async function sample(
  wire: Wire,
  promptIds: Int32Array,
  sampling: Partial<SamplingParams>,
  signal: AbortSignal,
): Promise<Sample> {
  const tokenIds: number[] = []
  const logprobs: number[] = []
  let finish: WireFinish | undefined
  let label: string | undefined
  const request = {
    id: freshRequestId(),
    executionId: executionId('probe'),
    promptIds,
    sampling: { maxTokens: TOKENS, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 1, ...sampling },
  }
  for await (const chunks of wire.chunks(request, signal)) {
    for (const chunk of chunks) {
      tokenIds.push(...chunk.tokenIds)
      logprobs.push(...chunk.logprobs)
      finish ??= chunk.finish
      label = chunk.spans?.at(-1)?.label ?? chunk.label ?? label
    }
  }
  if (finish?.kind === 'broken') throw finish.error
  return { tokenIds, logprobs, finish, label }
}

/** Ids there and in the vocabulary, as many as asked for, each with a log-prob, and a reason for the end. */
function checkSample(where: string, { tokenIds, logprobs, finish }: Sample, options: ProbeOptions): void {
  const { hints, vocabSize = Number.POSITIVE_INFINITY } = options
  if (tokenIds.length === 0) throw notUsable(where, 'it answers without token ids', hints.ids)
  const foreign = tokenIds.find((id) => id >= vocabSize)
  if (foreign !== undefined) {
    const missing = `it sampled token ${foreign}, and the tokenizer has ${vocabSize}`
    throw notUsable(where, missing, 'Serve the model that the tokenizer belongs to')
  }
  const lacking = logprobs.filter((logprob) => Number.isNaN(logprob)).length
  if (lacking > 0) {
    const missing = `${lacking} of ${tokenIds.length} tokens came without a log-prob`
    throw notUsable(where, missing, hints.logprobs)
  }
  if (finish === undefined) throw notUsable(where, 'it does not say why a generation ended', hints.ids)
  if (finish.kind !== 'length' || tokenIds.length !== TOKENS) {
    const missing = `it ended by ${finish.kind} after ${tokenIds.length} of ${TOKENS} tokens, with no stop token set`
    throw notUsable(where, missing, hints.stopToken)
  }
}

/**
 * What the log-probs are of. The most likely tokens are sampled at two temperatures: raw ones are equal, scaled ones
 * differ. Of a distribution that was cut to one token every log-prob is 0, although an uncut sample says otherwise.
 */
function semanticsOf(plain: Sample, cold: Sample, hot: Sample): RemoteCapabilities['logprobs'] {
  const shared = sharedTokens(cold.tokenIds, hot.tokenIds)
  const pairs = Array.from({ length: shared }, (_, i) => [cold.logprobs[i] ?? 0, hot.logprobs[i] ?? 0] as const)
  if (pairs.some(([a, b]) => Math.abs(a - b) > 0.02 + 0.05 * Math.abs(a))) return 'scaled'
  if (contradicts(plain, cold)) return 'truncated'
  return pairs.some(([a]) => a < -TELLING) ? 'raw' : 'unverified'
}

function sharedTokens(a: readonly number[], b: readonly number[]): number {
  const first = a.findIndex((id, i) => id !== b[i])
  return first < 0 ? a.length : first
}

/** True when the cut sample gives a token more than the uncut one leaves for it. */
function contradicts(plain: Sample, cut: Sample): boolean {
  const shared = sharedTokens(plain.tokenIds, cut.tokenIds)
  return plain.tokenIds.some((_, i) => {
    if (i > shared) return false
    const [p, c] = [Math.exp(plain.logprobs[i] ?? 0), Math.exp(cut.logprobs[i] ?? 0)]
    return i === shared ? p + c > 1.02 : Math.abs(p - c) > 0.05
  })
}

/** A stop token must end the generation and be its last token. */
async function checkStop(
  where: string,
  cold: Sample,
  { promptIds, hints }: ProbeOptions,
  ask: (ids: Int32Array, sampling: Partial<SamplingParams>) => Promise<Sample>,
): Promise<void> {
  const stop = cold.tokenIds[0] as number
  const { tokenIds, finish } = await ask(promptIds, { topP: TINY_TOP_P, stopTokenIds: [stop] })
  if (finish?.kind === 'stop' && tokenIds.at(-1) === stop) return
  const missing =
    finish?.kind === 'stop' ? 'it takes the stop token out of the answer' : 'it does not end at a stop token'
  throw notUsable(where, missing, hints.stopToken)
}

/** Whether a draw depends on seed and position: then a resumed generation repeats the rest of the whole one. */
async function seedingOf(
  promptIds: Int32Array,
  ask: (ids: Int32Array, sampling: Partial<SamplingParams>) => Promise<Sample>,
): Promise<RemoteCapabilities['seeding']> {
  // Hot, so that equal tokens are no accident.
  const drawn = { temperature: 2, maxTokens: DRAW_TOKENS }
  const whole = await ask(promptIds, drawn)
  const half = whole.tokenIds.slice(0, DRAW_TOKENS / 2)
  const rest = await ask(Int32Array.from([...promptIds, ...half]), { ...drawn, maxTokens: DRAW_TOKENS / 2 })
  const other = await ask(promptIds, { ...drawn, seed: 2 })
  const isRepeated = rest.tokenIds.join() === whole.tokenIds.slice(DRAW_TOKENS / 2).join()
  const isSeeded = other.tokenIds.join() !== whole.tokenIds.join()
  return isRepeated && isSeeded ? 'positional' : 'per-call'
}
