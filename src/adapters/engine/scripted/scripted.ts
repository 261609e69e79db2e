/**
 * @file An engine that says what it is told to say: replays of recorded traffic, dry runs of a harness, tests.
 *
 * It keeps no state between calls. What comes next is a function of the context alone, so a generation that is
 * cancelled here and resumed on another scripted engine with the same script goes on with the next token.
 */
import { GyreError } from '../../../core/errors.ts'
import type { EngineId, ExecutionId } from '../../../core/ids.ts'
import type { AssistantItem } from '../../../core/items.ts'
import type { Engine, GenerateEvent, GenerateRequest } from '../../../ports/engine.ts'
import type { ChatCodec } from '../../../tokens/codec.ts'

/**
 * The ids still to come after `promptIds`, which may end in a part of the turn; empty when nothing is left.
 * `requestId` is the same for every leg of one generation.
 */
export type Script = (promptIds: Int32Array, executionId: ExecutionId, requestId: string) => ArrayLike<number>

export interface ScriptedEngineOptions {
  readonly id: EngineId
  readonly script: Script
  /** Stamped on every token. Defaults to 0. */
  readonly policyVersion?: number
  /** Tokens per event. Defaults to 16. [tokens] */
  readonly chunkTokens?: number
  /** Pause before each event. Defaults to 0. [ms] */
  readonly chunkDelayMs?: number
  /** Defaults to no limit. [tokens] */
  readonly maxContext?: number
  /** Log-prob claimed for an id at an absolute position, nats. Defaults to 0: a script is certain. */
  readonly logprob?: (tokenId: number, position: number) => number
}

export class ScriptedEngine implements Engine {
  readonly id: EngineId
  readonly #options: Required<Omit<ScriptedEngineOptions, 'id'>>

  constructor(options: ScriptedEngineOptions) {
    this.id = options.id
    this.#options = {
      policyVersion: 0,
      chunkTokens: 16,
      chunkDelayMs: 0,
      maxContext: Number.POSITIVE_INFINITY,
      logprob: () => 0,
      ...options,
    }
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    const { promptIds, sampling } = request
    const room = Math.min(sampling.maxTokens, this.#options.maxContext - promptIds.length)
    if (room < 1) throw overlong(promptIds.length, this.#options.maxContext)
    const script = this.#options.script(promptIds, request.executionId, request.requestId)
    const stops = new Set(sampling.stopTokenIds)
    let position = promptIds.length
    const end = promptIds.length + Math.min(room, script.length)
    let isStopped = script.length === 0
    while (position < end && !isStopped) {
      await pause(this.#options.chunkDelayMs, signal)
      const tokenIds: number[] = []
      while (position < end && tokenIds.length < this.#options.chunkTokens && !isStopped) {
        const id = script[position - promptIds.length] as number
        tokenIds.push(id)
        isStopped = stops.has(id)
        position++
      }
      yield this.#event(tokenIds, position - tokenIds.length)
    }
    throwIfCancelled(signal)
    const finishReason = isStopped || script.length < room ? 'stop' : 'length'
    yield { kind: 'end', finishReason, cachedTokens: 0 }
  }

  #event(tokenIds: readonly number[], position: number): GenerateEvent {
    return {
      kind: 'tokens',
      tokenIds,
      logprobs: tokenIds.map((id, i) => this.#options.logprob(id, position + i)),
      policyVersions: tokenIds.map(() => this.#options.policyVersion),
    }
  }
}

/**
 * Scripts whole turns: `turns` are spoken in order, one per generation prompt in the context, or chosen by a function
 * of the number of earlier turns. After the last one the engine says an empty turn.
 */
export function scriptedTurns(
  codec: ChatCodec,
  turns: readonly AssistantItem[] | ((turn: number, context: string) => AssistantItem),
): Script {
  const opening = codec.encodeGenerationPrompt()
  const silence: AssistantItem = { kind: 'assistant', thinking: '', text: '', toolCalls: [] }
  return (promptIds) => {
    const starts = occurrences(promptIds, opening)
    const start = (starts.at(-1) ?? 0) + opening.length
    const turn =
      typeof turns === 'function'
        ? turns(starts.length - 1, codec.decode(promptIds.subarray(0, start)))
        : (turns[starts.length - 1] ?? silence)
    return codec.encodeTurn(turn).subarray(promptIds.length - start)
  }
}

/** Every offset at which `part` stands in `ids`. */
function occurrences(ids: Int32Array, part: Int32Array): readonly number[] {
  const found: number[] = []
  for (let i = ids.indexOf(part[0] as number); i >= 0; i = ids.indexOf(part[0] as number, i + 1)) {
    if (part.every((id, k) => ids[i + k] === id)) found.push(i)
  }
  return found
}

function overlong(promptTokens: number, maxContext: number): GyreError {
  return new GyreError(
    `${promptTokens} prompt tokens leave no room in a context of ${maxContext}: shorten the prompt`,
    {
      boundary: 'engine',
      code: 'E_ENGINE_OVERLONG',
    },
  )
}

function throwIfCancelled(signal: AbortSignal): void {
  if (!signal.aborted) return
  throw new GyreError('the generation was cancelled: go on from its tokens or drop it', {
    boundary: 'engine',
    code: 'E_ENGINE_CANCELLED',
    retryable: true,
  })
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  throwIfCancelled(signal)
  await new Promise<void>((resolve) => {
    if (ms === 0) {
      setImmediate(resolve)
      return
    }
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
  throwIfCancelled(signal)
}
