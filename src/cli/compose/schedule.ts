/** @file From the config's words to the scheduler's and the trainer's numbers. */
import type { RunConfig } from '../../config/resolve.ts'
import type { ControllerDeadlines } from '../../run/controller-types.ts'
import type { TrainingSettings } from '../../run/work.ts'
import type { SchedulerConfig } from '../../scheduler/types.ts'
import type { OptimizerParams } from '../../training/batch.ts'

export function schedulerConfig(config: RunConfig): SchedulerConfig {
  const { elastic, rollout, training } = config
  return {
    policy: elastic.policy,
    cells: elastic.cells,
    cellSlots: elastic.slotsPerCell,
    standaloneSlots: elastic.standalone.map(({ slots }) => slots),
    groupSize: rollout.groupSize,
    groupsPerStep: training.groupsPerStep,
    stepsPerBurst: training.stepsPerBurst,
    carryOver: elastic.carryOver,
    carryOverMin: elastic.carryOverMin,
    carryOverMax: elastic.carryOverMax,
    stragglerQuorum: elastic.stragglerQuorum,
    stragglerGrace: elastic.stragglerGrace,
    overCommit: elastic.overCommit,
    kvHandover: elastic.kvHandover,
    earlyForward: elastic.earlyForward,
    totalSteps: training.steps,
    trainingCells: elastic.trainingCells,
    demandAware: elastic.demandAware,
    placement: elastic.placement,
    executionAttempts: rollout.executionAttempts,
    cellRestarts: elastic.cellRestarts,
    excludedGroupsLimit: rollout.excludedGroupsLimit,
  }
}

export function trainingSettings(config: RunConfig): TrainingSettings {
  const { training, policy, elastic, seed } = config
  return {
    seed,
    groupsPerStep: training.groupsPerStep,
    advantage: training.advantage,
    jMax: training.jMax,
    maxTrajectoryTokens: policy.model.context,
    maxMicroStepTokens: training.microStepTokens,
    microStepsPerGroup: elastic.cells > 1 ? 2 : 1,
    objective: {
      kind: 'policy-gradient',
      clipLow: training.clipLow,
      clipHigh: training.clipHigh,
      ratioBound: training.ratioBound,
      entropyWeight: training.entropyWeight,
    },
    optimizer: (step) => optimizerParams(config, training.learningRate, step, training.warmupSteps),
  }
}

/** Linear warm-up, then constant. */
export function optimizerParams(
  { training }: RunConfig,
  learningRate: number,
  step: number,
  warmupSteps: number,
): OptimizerParams {
  return {
    learningRate: learningRate * Math.min(1, (step + 1) / Math.max(1, warmupSteps)),
    beta1: training.beta1,
    beta2: training.beta2,
    epsilon: training.epsilon,
    weightDecay: training.weightDecay,
    gradientClip: training.gradientClip,
  }
}

/** Imitation has clean gradients: every parameter may move at full speed. */
const IMITATION_EPSILON = 1e-8
/** Share of the cold start over which the step size falls to a tenth. */
const COOLDOWN = 0.3

/** Warm-up, plateau, linear cool-down. */
export function warmstartOptimizer(config: RunConfig): (step: number) => OptimizerParams {
  const { steps, excerptSteps, learningRate, warmupSteps } = config.warmstart
  const total = steps + excerptSteps
  return (step) => {
    const left = (total - step) / (total * COOLDOWN)
    const scale = Math.max(0.1, Math.min(1, left))
    return { ...optimizerParams(config, learningRate * scale, step, warmupSteps), epsilon: IMITATION_EPSILON }
  }
}

export function controllerDeadlines({ elastic }: RunConfig): ControllerDeadlines {
  return {
    cancelMs: 15_000,
    switchMs: 30_000,
    weightsMs: 60_000,
    trainMs: 10 * 60_000,
    reduceMs: 2 * 60_000,
    optimizeMs: 60_000,
    checkpointMs: 2 * 60_000,
    restartMs: 90_000,
    handoverMs: elastic.handoverMs,
    heartbeatMs: elastic.heartbeatMs,
    healthMs: elastic.healthMs,
  }
}
