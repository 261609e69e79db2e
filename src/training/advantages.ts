/** @file Group-relative advantages: how much better an execution did than its siblings. */
import { invariant } from '../core/errors.ts'
import type { ExecutionId, GroupId } from '../core/ids.ts'

/**
 * `grpo`: (r - mean) / std, population std (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
 * `dr-grpo`: r - mean (arXiv 2503.20783, section 3.2).
 * `rloo`: r - mean of the other rewards (arXiv 2402.14740, eq. 8).
 */
export type AdvantageEstimator = 'grpo' | 'dr-grpo' | 'rloo'

export interface GroupMember {
  readonly executionId: ExecutionId
  /** undefined when the execution was excluded; it then takes no part in the mean. */
  readonly reward: number | undefined
}

export interface GroupAdvantages {
  readonly groupId: GroupId
  /** Scored members only; empty when the group teaches nothing. */
  readonly advantages: ReadonlyMap<ExecutionId, number>
  /** Why the group gives no gradient. */
  readonly skipped: 'too-few-scored' | 'zero-variance' | undefined
  /** Over the scored members; NaN when there are none. */
  readonly meanReward: number
  readonly stdReward: number
}

/** Rewards closer than this, relative to their size, are equal: their difference is rounding. */
const RELATIVE_TOLERANCE = 1e-9

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

function allEqual(values: readonly number[]): boolean {
  const low = Math.min(...values)
  const high = Math.max(...values)
  return high - low <= RELATIVE_TOLERANCE * Math.max(1, Math.abs(low), Math.abs(high))
}

/** Advantages of one group. Fewer than two scored members, or equal rewards, give none. */
export function groupAdvantages(
  groupId: GroupId,
  members: readonly GroupMember[],
  estimator: AdvantageEstimator,
): GroupAdvantages {
  const scored = members.flatMap(({ executionId, reward }) => (reward === undefined ? [] : [{ executionId, reward }]))
  const rewards = scored.map((member) => member.reward)
  invariant(rewards.every(Number.isFinite), `the rewards of group ${groupId} are finite, or undefined when excluded`)
  const center = mean(rewards)
  const std = Math.sqrt(mean(rewards.map((reward) => (reward - center) ** 2)))
  const facts = { groupId, meanReward: center, stdReward: std }
  if (scored.length < 2) return { ...facts, advantages: new Map(), skipped: 'too-few-scored' }
  if (allEqual(rewards)) return { ...facts, advantages: new Map(), skipped: 'zero-variance' }
  // r_i minus the mean of the others is n / (n - 1) times r_i minus the mean of all.
  const scale = { grpo: 1 / std, 'dr-grpo': 1, rloo: scored.length / (scored.length - 1) }[estimator]
  const advantages = new Map(scored.map(({ executionId, reward }) => [executionId, (reward - center) * scale]))
  return { ...facts, advantages, skipped: undefined }
}
