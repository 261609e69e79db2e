/**
 * @file What a server must show before a run trusts it with executions: that it loads weights it is given, all of them,
 * and then gives the log-probs that the run's own engine gives.
 */
import { rmSync } from 'node:fs'
import { executionId } from '../../../core/ids.ts'
import type { Engine, PublishedWeights } from '../../../ports/engine.ts'
import { notUsable } from './failures.ts'
import { freshRequestId } from './remote-engine.ts'
import { servableFolder, withExchangedTokens } from './servable-folder.ts'
import type { RemoteStandaloneEngine } from './standalone.ts'

const PROMPT_TOKENS = 16
const TOKENS = 8
/** Leaves the most likely token only. */
const TINY_TOP_P = 1e-6
/** Log-probs of bfloat16 and of single precision differ by a few hundredths. [nats] */
const NEAR = 0.1

export interface WeightsCheck {
  /** What the run serves at present. */
  readonly weights: PublishedWeights
  /** An engine of the run that has them. */
  readonly reference: Engine
  /** [tokens] */
  readonly vocabSize: number
  /** Longest path of the run. [tokens] */
  readonly maxContext: number
}

interface Likeliest {
  readonly tokenIds: readonly number[]
  readonly logprobs: readonly number[]
}

/**
 * Leaves the engine with the weights. @throws GyreError E_ENGINE_PROBE when its tokens could not be trained on;
 * E_ENGINE_WEIGHTS when it does not load the folder.
 */
export async function checkWeights(
  engine: RemoteStandaloneEngine,
  { weights, reference, vocabSize, maxContext }: WeightsCheck,
  signal: AbortSignal,
): Promise<void> {
  const servable = servableFolder(weights.folder)
  const mend = `Start it with the folder ${servable}`
  if (engine.capabilities.maxContext < maxContext) {
    const missing = `its context is ${engine.capabilities.maxContext} tokens, and the run needs ${maxContext}`
    throw notUsable(engine.where, missing, 'Start it with a longer one, or lower policy.model.context')
  }
  const promptIds = spread(vocabSize)
  const expected = await likeliest(reference, promptIds, TOKENS, signal)
  const first = expected.tokenIds[0] as number
  const other = promptIds.includes((first + 1) % vocabSize) ? (first + 2) % vocabSize : (first + 1) % vocabSize
  const exchanged = `${servable}.check.${process.pid}.${engine.id}`
  try {
    withExchangedTokens(servable, exchanged, [first, other])
    await engine.takeFolder({ ...weights, folder: exchanged }, signal)
    const found = await likeliest(engine, promptIds, 1, signal)
    if (found.tokenIds[0] !== other) {
      throw notUsable(engine.where, 'it keeps a part of the weights it was started with when it is given others', mend)
    }
  } finally {
    rmSync(exchanged, { recursive: true, force: true })
  }
  await engine.takeWeights(weights, signal)
  const found = await likeliest(engine, promptIds, TOKENS, signal)
  const at = firstDifference(expected, found)
  if (at === undefined) return
  const said = `${String(found.logprobs[at])} for token ${found.tokenIds[at]}`
  const wanted = `${String(expected.logprobs[at])} for token ${expected.tokenIds[at]}`
  throw notUsable(engine.where, `with the run's weights its log-probs differ: ${said}, the run's own ${wanted}`, mend)
}

/** Ids from all over the vocabulary. */
function spread(vocabSize: number): Int32Array {
  return Int32Array.from({ length: PROMPT_TOKENS }, (_, i) => Math.floor((i * vocabSize) / PROMPT_TOKENS))
}

async function likeliest(
  engine: Engine,
  promptIds: Int32Array,
  maxTokens: number,
  signal: AbortSignal,
): Promise<Likeliest> {
  const tokenIds: number[] = []
  const logprobs: number[] = []
  const request = {
    requestId: freshRequestId(),
    executionId: executionId('probe'),
    promptIds,
    sampling: { maxTokens, temperature: 1, topP: TINY_TOP_P, topK: 0, stopTokenIds: [], seed: 1 },
  }
  for await (const event of engine.generate(request, signal)) {
    if (event.kind !== 'tokens') continue
    tokenIds.push(...event.tokenIds)
    logprobs.push(...event.logprobs)
  }
  return { tokenIds, logprobs }
}

/** Up to the first token that differs: there both are near each other, or one of them is wrong. NaN is no evidence. */
function firstDifference(a: Likeliest, b: Likeliest): number | undefined {
  const count = Math.min(a.tokenIds.length, b.tokenIds.length)
  for (let i = 0; i < count; i++) {
    const [x, y] = [a.logprobs[i] as number, b.logprobs[i] as number]
    if (Math.abs(x - y) > NEAR + NEAR * Math.abs(x)) return i
    if (a.tokenIds[i] !== b.tokenIds[i]) return undefined
  }
  return undefined
}
