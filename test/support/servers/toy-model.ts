/** @file A language model of a few lines for engine servers: logits are a hash of the last ids, draws one of the seed. */

export const TOY_VOCAB = 64
/** The model's own end token; servers end at it unless they are told not to. */
export const TOY_EOS = 0
/** What servers send for "no value". [nats] */
export const SENTINEL = -9999

export interface ToySampling {
  readonly temperature: number
  readonly topP: number
  /** 0 or less means no limit. */
  readonly topK: number
  readonly seed: number
  readonly maxTokens: number
  readonly stopIds: readonly number[]
}

/** What a server's log-probs are of: see the engines' own flags. */
export type ToyLogprobs = 'raw' | 'scaled' | 'truncated'

export interface ToyToken {
  readonly id: number
  readonly logprob: number
}

/** What comes after the prompt, where a test has words of its own; undefined leaves it to the model. */
export type ToyScript = (promptIds: Int32Array) => ArrayLike<number> | undefined

/** Logits of every position, where a server has weights from disk; undefined before it has. [TOY_VOCAB] */
export type ToyWeights = () => readonly number[] | undefined

export interface ToyGeneration {
  readonly tokens: readonly ToyToken[]
  readonly finish: 'stop' | 'length'
}

/** @param draws whether a draw follows from seed and position, or from seed and count of this call. */
export function generateToy(
  prompt: readonly number[],
  sampling: ToySampling,
  semantics: ToyLogprobs,
  draws: 'positional' | 'per-call',
  script?: ToyScript,
  weights?: ToyWeights,
): ToyGeneration {
  const said = script?.(Int32Array.from(prompt))
  if (said !== undefined) return scripted(said, sampling)
  const context = [...prompt]
  const tokens: ToyToken[] = []
  while (tokens.length < sampling.maxTokens) {
    const at = draws === 'positional' ? context.length : tokens.length
    const token = nextToken(weights?.() ?? logitsAfter(context), sampling, semantics, unit(mix(sampling.seed, at)))
    tokens.push(token)
    context.push(token.id)
    if (sampling.stopIds.includes(token.id)) return { tokens, finish: 'stop' }
  }
  return { tokens, finish: 'length' }
}

function scripted(said: ArrayLike<number>, { maxTokens, stopIds }: ToySampling): ToyGeneration {
  const tokens = Array.from(said, (id) => ({ id, logprob: -0.5 })).slice(0, maxTokens)
  const last = tokens.at(-1)
  return { tokens, finish: last !== undefined && stopIds.includes(last.id) ? 'stop' : 'length' }
}

function nextToken(logits: readonly number[], sampling: ToySampling, semantics: ToyLogprobs, draw: number): ToyToken {
  const raw = logSoftmax(logits)
  const { temperature, topP, topK } = sampling
  const scaled = logSoftmax(raw.map((x) => x / Math.max(temperature, 1e-3)))
  const order = scaled.map((_, id) => id).sort((a, b) => (scaled[b] as number) - (scaled[a] as number))
  const kept: number[] = []
  let mass = 0
  for (const id of order) {
    if (topK > 0 && kept.length >= topK) break
    kept.push(id)
    mass += Math.exp(scaled[id] as number)
    if (mass >= topP) break
  }
  let left = draw * mass
  const id = kept.find((candidate) => (left -= Math.exp(scaled[candidate] as number)) <= 0) ?? kept[0] ?? 0
  const logprobs = { raw: raw[id], scaled: scaled[id], truncated: (scaled[id] as number) - Math.log(mass) }
  return { id, logprob: Math.min(0, Math.fround(logprobs[semantics] as number)) }
}

function logitsAfter(context: readonly number[]): number[] {
  const state = mix(context.at(-1) ?? 0, mix(context.at(-2) ?? 0, context.at(-3) ?? 0))
  return Array.from({ length: TOY_VOCAB }, (_, id) => 5 * unit(mix(state, id)))
}

function logSoftmax(logits: readonly number[]): number[] {
  const max = Math.max(...logits)
  const norm = max + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - max), 0))
  return logits.map((x) => x - norm)
}

function mix(a: number, b: number): number {
  let x = (Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 1, 0x85ebca6b)) >>> 0
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d) >>> 0
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b) >>> 0
  return (x ^ (x >>> 16)) >>> 0
}

function unit(x: number): number {
  return (x + 0.5) / 2 ** 32
}
