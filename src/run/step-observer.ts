/** @file Joins what was trained with what came back, into the metrics of a step. */
import type { GroupId } from '../core/ids.ts'
import type { ForwardBackwardResult, MicroBatch } from '../training/batch.ts'
import type { PackedMicroStep } from '../training/forest.ts'
import { StepStats } from '../training/stats.ts'

interface Expected {
  readonly step: number
  /** The same for every repetition of one micro-step, so that it counts once. */
  readonly index: number
  readonly packed: PackedMicroStep
}

export class StepObserver {
  readonly #expected = new WeakMap<MicroBatch, Expected>()
  readonly #stats = new Map<number, StepStats>()
  readonly #indices = new Map<string, number>()
  #nextIndex = 0

  /** @param step optimizer steps done before it, which is also the version of the weights it trains. */
  expect(groupId: GroupId, step: number, packed: readonly PackedMicroStep[]): void {
    for (const [i, microStep] of packed.entries()) {
      const key = `${step}/${groupId}/${i}`
      const index = this.#indices.get(key) ?? this.#nextIndex++
      this.#indices.set(key, index)
      this.#expected.set(microStep.batch, { step, index, packed: microStep })
    }
  }

  see(batch: MicroBatch, result: ForwardBackwardResult): void {
    const expected = this.#expected.get(batch)
    if (expected === undefined) return
    const stats = this.#stats.get(expected.step) ?? new StepStats(expected.step)
    stats.add(expected.index, expected.packed, result)
    this.#stats.set(expected.step, stats)
  }

  /** The metrics of a finished step, which is then forgotten. */
  take(step: number): Readonly<Record<string, number>> {
    const metrics = this.#stats.get(step)?.metrics() ?? {}
    this.#stats.delete(step)
    for (const key of this.#indices.keys()) if (key.startsWith(`${step}/`)) this.#indices.delete(key)
    return metrics
  }
}
