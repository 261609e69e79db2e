/** @file From the groups of a training step to what is packed: advantages, then weights, then paths. */
import type { ExecutionId, GroupId } from '../core/ids.ts'
import type { Trajectory } from '../trajectory/admission.ts'
import { type AdvantageEstimator, type GroupAdvantages, groupAdvantages } from './advantages.ts'
import type { PackExecution } from './forest.ts'
import { trajectorySequence } from './pack.ts'
import { tokenWeights } from './weights.ts'

export interface StepMember {
  readonly executionId: ExecutionId
  /** undefined when the execution was excluded. */
  readonly reward: number | undefined
  /** What admission picked; empty for a placeholder. */
  readonly trajectories: readonly Trajectory[]
}

export interface StepGroup {
  readonly groupId: GroupId
  readonly members: readonly StepMember[]
}

export interface TrainingStep {
  /** Executions that carry gradient, groups together, in the order given. */
  readonly executions: readonly PackExecution[]
  readonly groups: readonly GroupAdvantages[]
  /** Groups without gradient, by reason. [groups] */
  readonly tooFewScored: number
  readonly zeroVariance: number
  /** Trainable tokens of the step. [tokens] */
  readonly trainableTokens: number
}

/** Fixes the advantages and the normalizer of a step. All token weights of `executions` sum to 1, or there are none. */
export function trainingStep(groups: readonly StepGroup[], estimator: AdvantageEstimator): TrainingStep {
  const advantaged = groups.map(({ groupId, members }) => groupAdvantages(groupId, members, estimator))
  const candidates = groups.flatMap(({ members }, i) =>
    members.flatMap((member) => {
      const advantage = advantaged[i]?.advantages.get(member.executionId)
      const tokens = member.trajectories.reduce((sum, trajectory) => sum + trajectory.trainedTokens, 0)
      return advantage === undefined || tokens === 0 ? [] : [{ member, advantage, tokens }]
    }),
  )
  const weights = tokenWeights(new Map(candidates.map(({ member, tokens }) => [member.executionId, tokens])))
  return {
    executions: candidates.map(({ member, advantage }) => ({
      key: member.executionId,
      advantage,
      tokenWeight: weights.get(member.executionId) ?? 0,
      sequences: member.trajectories.map(trajectorySequence),
    })),
    groups: advantaged,
    tooFewScored: advantaged.filter((group) => group.skipped === 'too-few-scored').length,
    zeroVariance: advantaged.filter((group) => group.skipped === 'zero-variance').length,
    trainableTokens: candidates.reduce((sum, { tokens }) => sum + tokens, 0),
  }
}
