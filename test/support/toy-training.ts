/** @file What toy cells compute: gradients that are linear in the advantage, and early work that uses it. */
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import type { EarlyCut, EarlyWork } from '../../src/run/controller-types.ts'
import type { ForwardBackwardResult, MicroBatch } from '../../src/training/batch.ts'

export const PARAMETERS = 64

export const TOY_RESULT: ForwardBackwardResult = {
  loss: 0.5,
  entropy: 0.1,
  logprobs: new Float32Array(1),
  clippedTokens: 0,
  maskedTokens: 0,
}

export function toyBatch(group: number, advantage: number): MicroBatch {
  const ids = Int32Array.of(group)
  return {
    tokenIds: ids,
    positions: Int32Array.of(0),
    subtreeEnd: Int32Array.of(1),
    targetRows: Int32Array.of(0),
    targetIds: ids,
    targetWeights: Float32Array.of(0.1),
    targetAdvantages: Float32Array.of(advantage),
    targetBehaviorLogprobs: new Float32Array(1),
  }
}

/** The advantage, at the parameter that the first token names. */
export function gradientOf(batch: MicroBatch): Float32Array {
  const gradient = new Float32Array(PARAMETERS)
  gradient[batch.tokenIds[0] ?? 0] = batch.targetAdvantages[0] ?? 0
  return gradient
}

export function add(into: Float32Array, gradient: Float32Array, scale = 1): void {
  into.forEach((value, i) => (into[i] = value + scale * (gradient[i] ?? 0)))
}

/** The last micro-steps of a group are those of the executions that are kept. */
export class ToyEarly implements EarlyWork {
  readonly #groupOf: (id: ExecutionId) => GroupId | undefined
  readonly #batches: (id: GroupId) => readonly MicroBatch[]
  /** What should not have been asked for. */
  readonly #problems: string[]
  /** Step whose weights they are kept under. */
  readonly #kept = new Map<ExecutionId, number>()

  constructor(
    groupOf: (id: ExecutionId) => GroupId | undefined,
    batches: (id: GroupId) => readonly MicroBatch[],
    problems: string[],
  ) {
    this.#groupOf = groupOf
    this.#batches = batches
    this.#problems = problems
  }

  /** Every other one seems to be worse than its siblings. */
  batch(id: ExecutionId): MicroBatch | undefined {
    const group = this.#groupOf(id)
    return group === undefined ? undefined : toyBatch(Number(group.slice(1)), Number(id.slice(1)) % 2 === 0 ? 1 : -1)
  }

  held(id: ExecutionId, step: number): void {
    this.#kept.set(id, step)
  }

  microSteps(id: GroupId, step: number, held: readonly ExecutionId[]): Promise<EarlyCut> {
    const batches = this.#batches(id)
    const first = Math.max(0, batches.length - held.length)
    const own = batches.slice(first).flatMap((batch, i) => {
      const of = held[i]
      if (of === undefined) return []
      if (this.#groupOf(of) !== id) this.#problems.push(`${of} is not of group ${id}`)
      if (this.#kept.get(of) !== step) this.#problems.push(`${of} is not kept in step ${step}`)
      const scale = batch.targetAdvantages[0] ?? 0
      return [{ index: first + i, executionId: of, scale, result: TOY_RESULT }]
    })
    return Promise.resolve({ batches, held: own })
  }
}
