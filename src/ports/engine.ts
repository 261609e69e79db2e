/** @file A rollout destination as the gateway sees it: token ids in, token ids out. */
import type { EngineId, ExecutionId } from '../core/ids.ts'

export interface SamplingParams {
  readonly maxTokens: number
  readonly temperature: number
  readonly topP: number
  /** 0 means no limit. */
  readonly topK: number
  readonly stopTokenIds: readonly number[]
  /**
   * The random draw of the token at absolute position p depends on (seed, p) only, so a call
   * that moves to another engine with the same weights goes on exactly as it would have.
   */
  readonly seed: number
}

export interface GenerateRequest {
  readonly requestId: string
  readonly executionId: ExecutionId
  /** [T] the whole context, including tokens already generated before a move. */
  readonly promptIds: Int32Array
  readonly sampling: SamplingParams
}

export type GenerateEvent =
  | {
      readonly kind: 'tokens'
      /** Equal lengths. */
      readonly tokenIds: readonly number[]
      /** Raw log-probs at temperature 1 before any truncation of the distribution, nats. */
      readonly logprobs: readonly number[]
      readonly policyVersions: readonly number[]
    }
  | {
      readonly kind: 'end'
      readonly finishReason: 'stop' | 'length'
      readonly cachedTokens: number
      /** One per token of this generation, when the engine learned only at the end that earlier ones were wrong. */
      readonly policyVersions?: readonly number[]
    }

/** Where published weights are: both hold the same version. */
export interface PublishedWeights {
  /** A checkpoint in Hugging Face layout. [absolute path] */
  readonly folder: string
  readonly policyVersion: number
}

/** A rollout engine beside the cells: it never trains and is never asked to leave. */
export interface StandaloneEngine extends Engine {
  /** [executions] */
  readonly slots: number
  /**
   * Serves these weights from now on; tokens of other weights are never stamped with their version.
   * @throws GyreError E_ENGINE_UNREACHABLE, E_ENGINE_TIMEOUT, or what the engine answered.
   */
  takeWeights(weights: PublishedWeights, signal: AbortSignal): Promise<void>
  /** Resolves when it answers. @throws GyreError E_ENGINE_UNREACHABLE. */
  probe(signal: AbortSignal): Promise<void>
}

export interface Engine {
  readonly id: EngineId
  /**
   * Streams one generation; the last event is `end`, and the stop token is among the tokens.
   * Cancelling through `signal` ends the iteration with E_ENGINE_CANCELLED; a lost connection
   * with E_ENGINE_UNREACHABLE. Tokens already yielded stay valid in both cases.
   * @throws GyreError E_ENGINE_OVERLONG when promptIds leave no room for one token.
   */
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
}
