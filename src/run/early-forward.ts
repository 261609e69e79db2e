/**
 * @file Gradients of executions before their group is complete: what is computed, with which sign, and what of it serves
 * when the advantage is known.
 *
 * An execution is kept when it is one micro-step by itself. It shares no prefix with its siblings then, but that costs
 * rows in time that nobody else wanted: once it is kept, adding it costs none, and the siblings that were not kept share
 * as before. Only when its holder is lost are those rows computed once more.
 *
 * The sign is a guess that may be wrong at the price of the work: the gradient serves when it is right, or when no
 * target is outside the clip.
 */
import type { ExecutionId, GroupId } from '../core/ids.ts'
import { invariant } from '../core/errors.ts'
import type { HeldResult } from '../ports/cell.ts'
import type { ForwardBackwardResult, MicroBatch } from '../training/batch.ts'
import type { PackExecution, PackedMicroStep } from '../training/forest.ts'
import { packMicroSteps, trajectorySequence } from '../training/pack.ts'
import type { Trajectory } from '../trajectory/admission.ts'
import type { EarlyCut, EarlyWork, HeldMicroStep } from './controller-types.ts'

/** Mean reward of siblings that are not known yet: rewards are mostly 0 or 1. */
const PRIOR_REWARD = 0.5

export interface EarlyDeps {
  /** Rows of one micro-step. [tokens] */
  readonly maxTokens: number
  /** A scored execution, and the rewards of the scored members of its group so far, its own among them. */
  readonly scored: (executionId: ExecutionId) => {
    readonly trajectories: readonly Trajectory[]
    readonly reward: number
    readonly rewards: readonly number[]
  }
  /** Executions of a complete group that carry gradient; the token weights are those of the step. */
  readonly executions: (groupId: GroupId) => Promise<readonly PackExecution[]>
  /** As every group is cut. */
  readonly pack: (executions: readonly PackExecution[]) => readonly PackedMicroStep[]
  readonly expect: (groupId: GroupId, step: number, packed: readonly PackedMicroStep[]) => void
}

interface Kept {
  readonly step: number
  readonly sign: number
  /** Rows of its micro-step. [tokens] */
  readonly tokens: number
  readonly result: HeldResult
}

export class EarlyForward implements EarlyWork {
  readonly #deps: EarlyDeps
  readonly #kept = new Map<ExecutionId, Kept>()

  constructor(deps: EarlyDeps) {
    this.#deps = deps
  }

  batch(executionId: ExecutionId): MicroBatch | undefined {
    const { trajectories, reward, rewards } = this.#deps.scored(executionId)
    const packed = this.#alone({
      key: executionId,
      advantage: likelySign(reward, rewards),
      tokenWeight: 1,
      sequences: trajectories.map(trajectorySequence),
    })
    return packed?.batch
  }

  held(executionId: ExecutionId, step: number, batch: MicroBatch, result: HeldResult): void {
    // The last answer of a step may come when the next one is open: it forgets nothing of that.
    for (const [id, kept] of this.#kept) if (kept.step < step) this.#kept.delete(id)
    const sign = batch.targetAdvantages[0] ?? 0
    this.#kept.set(executionId, { step, sign, tokens: batch.tokenIds.length, result })
  }

  async microSteps(groupId: GroupId, step: number, held: readonly ExecutionId[]): Promise<EarlyCut> {
    const executions = await this.#deps.executions(groupId)
    const wanted = new Set<string>(held)
    const served = executions.flatMap((execution) => {
      const kept = wanted.has(execution.key) ? this.#kept.get(execution.key as ExecutionId) : undefined
      return kept !== undefined && kept.step === step && serves(kept, execution.advantage) ? [{ execution, kept }] : []
    })
    const alone = new Set(served.map(({ execution }) => execution))
    const rest = this.#deps.pack(executions.filter((execution) => !alone.has(execution)))
    const own = served.map(({ execution, kept }, i) => this.#heldMicroStep(execution, kept, rest.length + i))
    const packed = [...rest, ...own.map((o) => o.packed)]
    this.#deps.expect(groupId, step, packed)
    return { batches: packed.map((p) => p.batch), held: own.map((o) => o.microStep) }
  }

  #heldMicroStep(
    execution: PackExecution,
    kept: Kept,
    index: number,
  ): { readonly packed: PackedMicroStep; readonly microStep: HeldMicroStep } {
    const packed = this.#alone(execution)
    const isSame = packed?.batch.tokenIds.length === kept.tokens
    invariant(packed !== undefined && isSame, `execution ${execution.key} is the micro-step that was kept`)
    const scale = execution.advantage * execution.tokenWeight
    const result = scaled(kept, execution)
    return { packed, microStep: { index, executionId: execution.key as ExecutionId, scale, result } }
  }

  #alone(execution: PackExecution): PackedMicroStep | undefined {
    const packed = packMicroSteps([execution], { maxTokens: this.#deps.maxTokens, mergePrefix: true })
    return packed.length === 1 ? packed[0] : undefined
  }
}

/** Of reward minus the mean of the group. Certain for a reward at the end of what is possible. */
function likelySign(reward: number, rewards: readonly number[]): 1 | -1 {
  const mean = (PRIOR_REWARD + rewards.reduce((sum, r) => sum + r, 0)) / (rewards.length + 1)
  return reward >= mean ? 1 : -1
}

function serves({ sign, result }: Kept, advantage: number): boolean {
  return result.outsideTokens === 0 || Math.sign(advantage) === sign
}

/** Loss and entropy with the weights and the advantage of the step. */
function scaled({ sign, result }: Kept, { advantage, tokenWeight }: PackExecution): ForwardBackwardResult {
  const { logprobs, clippedTokens, maskedTokens } = result
  return {
    loss: result.loss * sign * advantage * tokenWeight,
    entropy: result.entropy * tokenWeight,
    logprobs,
    clippedTokens,
    maskedTokens,
  }
}
