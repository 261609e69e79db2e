/** @file The unit of training that crosses the cell protocol. Packing into it is pack.ts. */

/**
 * A packed forest in depth-first order: many trees, flat rows being trees without branches.
 *
 * Token j is visible to token i exactly when `j <= i && i < subtreeEnd[j]`.
 * T tokens, R targets. A target is one policy token that carries loss; its log-prob is read at
 * its predecessor on its own path, which in a tree is not always the row before.
 */
export interface MicroBatch {
  /** [T] token ids. */
  readonly tokenIds: Int32Array
  /** [T] depth of each token on its own path, from 0. */
  readonly positions: Int32Array
  /** [T] first row after the token's subtree. */
  readonly subtreeEnd: Int32Array
  /** [R] row whose output predicts the target. */
  readonly targetRows: Int32Array
  /** [R] id that was sampled there. */
  readonly targetIds: Int32Array
  /** [R] share of the step's loss; all weights of a step sum to 1. */
  readonly targetWeights: Float32Array
  /** [R] group-relative advantage of the target's execution. 1 for demonstrations. */
  readonly targetAdvantages: Float32Array
  /** [R] log-prob under the policy that sampled it, nats. */
  readonly targetBehaviorLogprobs: Float32Array
}

/**
 * `policy-gradient`: mean of -min(r A, clip(r, 1 - clipLow, 1 + clipHigh) A), r = exp(logp - behaviorLogp)
 * (PPO, arXiv 1707.06347, eq. 7); a token whose r is outside [1 / ratioBound, ratioBound] is masked.
 * `cross-entropy`: mean of -logp, for demonstrations.
 */
export type Objective =
  | {
      readonly kind: 'policy-gradient'
      readonly clipLow: number
      readonly clipHigh: number
      readonly ratioBound: number
      /** Weight of the entropy bonus, 0 for none. */
      readonly entropyWeight: number
    }
  | { readonly kind: 'cross-entropy' }

export interface ForwardBackwardResult {
  /** Sum over targets of weight x token loss. [nats] */
  readonly loss: number
  /** Sum over targets of weight x entropy at the target's row. [nats] */
  readonly entropy: number
  /** [R] log-probs under the weights of this step, nats. */
  readonly logprobs: Float32Array
  /** Targets whose ratio was clipped, and those masked by the bound. [tokens] */
  readonly clippedTokens: number
  readonly maskedTokens: number
}

export interface OptimizerParams {
  readonly learningRate: number
  readonly beta1: number
  readonly beta2: number
  readonly epsilon: number
  readonly weightDecay: number
  /** Global gradient norm is clipped to this; 0 turns clipping off. */
  readonly gradientClip: number
}
