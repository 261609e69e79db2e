/** @file The loss of one target and its slope. Formulas: training objective of the cell protocol. */

/** `policy-gradient` is PPO's clipped surrogate (arXiv 1707.06347, eq. 7); `cross-entropy` is -logp. */
export type TokenObjective =
  | {
      readonly kind: 'policy-gradient'
      readonly clipLow: number
      readonly clipHigh: number
      readonly ratioBound: number
      readonly entropyWeight: number
    }
  | { readonly kind: 'cross-entropy' }

export interface TokenLoss {
  /** [nats] */
  readonly loss: number
  /** d loss / d logp of the target. */
  readonly slope: number
  /** Weight of the row's entropy in the objective, which is maximized. */
  readonly bonus: number
  readonly fate: 'trained' | 'clipped' | 'masked'
}

const MASKED: TokenLoss = { loss: 0, slope: 0, bonus: 0, fate: 'masked' }

/** A ratio outside the bound, or one without evidence (NaN), takes the token out of the step. */
export function tokenLoss(o: TokenObjective, logp: number, advantage: number, behaviorLogp: number): TokenLoss {
  if (o.kind === 'cross-entropy') return { loss: -logp, slope: -1, bonus: 0, fate: 'trained' }
  const ratio = Math.exp(logp - behaviorLogp)
  if (!(ratio <= o.ratioBound && ratio >= 1 / o.ratioBound)) return MASKED
  const clipped = Math.min(Math.max(ratio, 1 - o.clipLow), 1 + o.clipHigh)
  if (clipped * advantage < ratio * advantage) {
    return { loss: -clipped * advantage, slope: 0, bonus: o.entropyWeight, fate: 'clipped' }
  }
  return { loss: -ratio * advantage, slope: -ratio * advantage, bonus: o.entropyWeight, fate: 'trained' }
}
