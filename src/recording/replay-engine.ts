/** @file An engine that says in every call of a replay what was sampled in that call when it was recorded. */
import { GyreError } from '../core/errors.ts'
import { engineId } from '../core/ids.ts'
import type { Engine, GenerateEvent, GenerateRequest } from '../ports/engine.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { ReplaySchedule } from './replay-schedule.ts'
import { sampledIds } from './sampled.ts'
import { callNumber } from './session.ts'

export class ReplayEngine implements Engine {
  readonly id = engineId('replay')
  /** The whole context of each call as it was asked for, by the call's number. */
  readonly contexts = new Map<number, Int32Array>()
  readonly #schedule: ReplaySchedule
  readonly #codec: ChatCodec
  readonly #beforeEnd: (call: number) => void

  /** @param beforeEnd Called when a call has said everything and may end: the time to hang up. */
  constructor(schedule: ReplaySchedule, codec: ChatCodec, beforeEnd: (call: number) => void) {
    this.#schedule = schedule
    this.#codec = codec
    this.#beforeEnd = beforeEnd
  }

  async *generate({ requestId, promptIds }: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    const number = callNumber(requestId)
    const first = this.contexts.get(number) ?? promptIds
    this.contexts.set(number, first)
    const call = this.#schedule.callOf(number)
    const ids = call === undefined ? new Int32Array(0) : sampledIds(call, this.#codec)
    const tokenIds = [...ids.subarray(promptIds.length - first.length)]
    if (tokenIds.length > 0) {
      const zeros = tokenIds.map(() => 0)
      yield { kind: 'tokens', tokenIds, logprobs: zeros, policyVersions: zeros }
    }
    await untilOrAborted(this.#schedule.untilMayEnd(number), signal)
    this.#beforeEnd(number)
    if (call === undefined || call.status === 'aborted') await untilOrAborted(new Promise(() => undefined), signal)
    yield { kind: 'end', finishReason: call?.end === 'length' ? 'length' : 'stop', cachedTokens: 0 }
  }
}

async function untilOrAborted(wait: Promise<void>, signal: AbortSignal): Promise<void> {
  await Promise.race([
    wait,
    new Promise<never>((_, reject) => {
      const abort = (): void => reject(cancelled())
      if (signal.aborted) abort()
      else signal.addEventListener('abort', abort, { once: true })
    }),
  ])
}

function cancelled(): GyreError {
  return new GyreError('the generation was cancelled: go on from its tokens or drop it', {
    boundary: 'engine',
    code: 'E_ENGINE_CANCELLED',
    retryable: true,
  })
}
