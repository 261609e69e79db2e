/** @file The run's real work, with micro-steps whose gradients can be checked to the last bit. */
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import type { Harness } from '../../src/ports/harness.ts'
import type { Scorer } from '../../src/ports/scorer.ts'
import type { Task } from '../../src/ports/task.ts'
import type { CheckpointSummary, Controller } from '../../src/run/controller-types.ts'
import type { FailureWatch } from '../../src/run/failure-watch.ts'
import type { GroupLedger } from '../../src/run/ledger.ts'
import { TrainingWork } from '../../src/run/work.ts'
import type { MicroBatch } from '../../src/training/batch.ts'
import type { SimBooks } from './books.ts'
import type { SimForwarding } from './forwarding.ts'
import type { Judge } from './judge.ts'
import type { Surroundings } from './machines.ts'
import type { SimSandbox } from './outside.ts'
import { microStepsOf } from './policy.ts'

const HARNESS_TIMEOUT_MS = 4000
const OVERALL_TIMEOUT_MS = 8000

export const TASKS: readonly Task[] = Array.from({ length: 3 }, (_, i) => ({
  name: `task-${i}`,
  folder: `/sim/tasks/${i}`,
  instruction: 'go',
  agentTimeoutMs: HARNESS_TIMEOUT_MS,
  verifierTimeoutMs: HARNESS_TIMEOUT_MS,
}))

export const numberOf = (id: GroupId): number => Number(id.slice(1))

interface Parts extends Surroundings {
  readonly books: SimBooks
  readonly forwarding: SimForwarding
  readonly sandbox: SimSandbox
  readonly judge: Judge
  readonly seed: number
}

interface Staff {
  readonly ledger: GroupLedger
  readonly harness: Harness
  readonly scorer: Scorer
  readonly watch: FailureWatch
  readonly groupsPerStep: number
}

export class SimWork extends TrainingWork {
  /** Executions that were started and have not given their slot back. */
  readonly owners = new Set<ExecutionId>()
  readonly #parts: Parts

  constructor(parts: Parts, staff: Staff) {
    const { books, forwarding, sandbox, seed, time } = parts
    super(
      {
        store: books,
        ledger: staff.ledger,
        execution: {
          forwarding,
          sandbox,
          harness: staff.harness,
          scorer: staff.scorer,
          gatewayUrl: 'sim://',
          executionFolder: (id) => `/sim/executions/${id}`,
          settings: {
            profile: 'generic',
            model: 'policy',
            contextWindow: 4096,
            maxOutputTokens: 100,
            maxCalls: 0,
            temperature: 1,
            topP: 1,
            topK: 0,
            limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
            harnessTimeoutMs: HARNESS_TIMEOUT_MS,
            overallTimeoutMs: OVERALL_TIMEOUT_MS,
            evaluationRetries: 1,
            keepWorkspace: 'never',
          },
        },
        settings: {
          seed,
          groupsPerStep: staff.groupsPerStep,
          advantage: 'grpo',
          jMax: 1,
          maxTrajectoryTokens: 4096,
          maxMicroStepTokens: 4096,
          microStepsPerGroup: 2,
          objective: { kind: 'cross-entropy' },
          optimizer: () => ({
            learningRate: 1,
            beta1: 0,
            beta2: 0,
            epsilon: 1,
            weightDecay: 0,
            gradientClip: 0,
          }),
        },
        clock: time,
        checkpointFolder: (step) => `step-${step}`,
        relativeFolder: (folder) => folder,
        onStep: () => undefined,
        onExecution: (row, report) => {
          parts.log(`execution ${row.executionId} ${row.state} ${report.outcome}`)
          parts.chaos.count(`outcome ${report.outcome}`)
        },
        onCheckpoint: (step) => parts.log(`checkpoint ${step} is durable`),
      },
      staff.watch,
    )
    this.#parts = parts
  }

  /** As the controller, but for who owns a slot. */
  override attach(controller: Controller): void {
    const gone = (id: ExecutionId): void => void this.owners.delete(id)
    super.attach({
      run: async () => controller.run(),
      stop: async () => controller.stop(),
      abort: (reason) => controller.abort(reason),
      snapshot: () => controller.snapshot(),
      usage: () => controller.usage(),
      state: () => controller.state(),
      executionEnded: (id) => (gone(id), controller.executionEnded(id)),
      executionScored: (id) => (gone(id), controller.executionScored(id)),
      executionExcluded: (id, reason) => (gone(id), controller.executionExcluded(id, reason)),
      executionFailed: (id, reason) => (gone(id), controller.executionFailed(id, reason)),
    })
  }

  override startExecution(executionId: ExecutionId): void {
    this.owners.add(executionId)
    super.startExecution(executionId)
  }

  override async microSteps(groupId: GroupId, step: number): Promise<readonly MicroBatch[]> {
    await this.#parts.time.sleep(8)
    const group = numberOf(groupId)
    this.#parts.judge.assigned(groupId, step)
    return Array.from({ length: microStepsOf(group) }, (_, index) => batchOf(group, index))
  }

  /** A transaction takes its time, before it is durable and after. */
  override async checkpoint(summary: CheckpointSummary): Promise<void> {
    await this.#parts.time.sleep(4)
    this.#parts.judge.published(summary)
    await super.checkpoint(summary)
    await this.#parts.time.sleep(4)
  }
}

function batchOf(group: number, index: number): MicroBatch {
  const ids = Int32Array.of(group, index)
  const floats = new Float32Array(1)
  return {
    tokenIds: ids,
    positions: Int32Array.of(0, 1),
    subtreeEnd: Int32Array.of(2, 2),
    targetRows: Int32Array.of(0),
    targetIds: Int32Array.of(index),
    targetWeights: Float32Array.of(0.1),
    targetAdvantages: floats,
    targetBehaviorLogprobs: floats,
  }
}
