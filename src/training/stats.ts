/** @file Metrics of a training step, from what its micro-steps were and what came back. */
import type { ForwardBackwardResult } from './batch.ts'
import type { PackedMicroStep } from './forest.ts'

interface Row {
  readonly packed: PackedMicroStep
  readonly result: ForwardBackwardResult
}

interface Totals {
  targets: number
  sampled: number
  staleness: number
  maxStaleness: number
  ratio: number
  maxRatio: number
  kl: number
}

function per(value: number, count: number): number {
  return count === 0 ? 0 : value / count
}

/** Collects results by micro-step; a micro-step that ran again replaces its earlier result. */
export class StepStats {
  readonly #policyVersion: number
  readonly #rows = new Map<number, Row>()

  /** @param policyVersion of the weights that the step trains. */
  constructor(policyVersion: number) {
    this.#policyVersion = policyVersion
  }

  add(microStep: number, packed: PackedMicroStep, result: ForwardBackwardResult): void {
    this.#rows.set(microStep, { packed, result })
  }

  /**
   * Flat numbers. Means are over targets; loss and entropy are weighted as the loss is.
   * `off_policy/approx_kl` is k3, the mean of r - 1 - log r (Schulman, "Approximating KL divergence", 2020),
   * r = exp(logp - behaviorLogp). Ratio metrics are left out when the step had demonstrations only. [nats, versions]
   */
  metrics(): Readonly<Record<string, number>> {
    const rows = [...this.#rows.values()]
    const sum = (of: (row: Row) => number): number => rows.reduce((total, row) => total + of(row), 0)
    const totals = this.#totals(rows)
    const tokens = sum(({ packed }) => packed.batch.tokenIds.length)
    const batch = {
      'train/loss': sum(({ result }) => result.loss),
      'train/entropy': sum(({ result }) => result.entropy),
      'batch/micro_steps': rows.length,
      'batch/executions': new Set(rows.flatMap(({ packed }) => packed.executions)).size,
      'batch/target_tokens': totals.targets,
      'batch/rows': tokens,
      'batch/rows_saved_fraction': 1 - per(tokens, sum(({ packed }) => packed.flatTokens) || tokens),
    }
    if (totals.sampled === 0) return batch
    return {
      ...batch,
      'off_policy/mean_staleness': per(totals.staleness, totals.sampled),
      'off_policy/max_staleness': totals.maxStaleness,
      'off_policy/mean_ratio': per(totals.ratio, totals.sampled),
      'off_policy/max_ratio': totals.maxRatio,
      'off_policy/approx_kl': per(totals.kl, totals.sampled),
      'off_policy/clip_fraction': per(
        sum(({ result }) => result.clippedTokens),
        totals.targets,
      ),
      'off_policy/masked_fraction': per(
        sum(({ result }) => result.maskedTokens),
        totals.targets,
      ),
    }
  }

  #totals(rows: readonly Row[]): Readonly<Totals> {
    const totals: Totals = { targets: 0, sampled: 0, staleness: 0, maxStaleness: 0, ratio: 0, maxRatio: 0, kl: 0 }
    for (const { packed, result } of rows) {
      totals.targets += packed.batch.targetIds.length
      packed.targetPolicyVersions.forEach((version, i) => {
        if (version < 0) return
        const staleness = this.#policyVersion - version
        const logRatio = (result.logprobs[i] ?? NaN) - (packed.batch.targetBehaviorLogprobs[i] ?? NaN)
        const ratio = Math.exp(logRatio)
        totals.sampled++
        totals.staleness += staleness
        totals.maxStaleness = Math.max(totals.maxStaleness, staleness)
        totals.ratio += ratio
        totals.maxRatio = Math.max(totals.maxRatio, ratio)
        totals.kl += ratio - 1 - logRatio
      })
    }
    return totals
  }
}
