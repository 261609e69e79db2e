/**
 * @file Weights and gradients read from the shared memory while the threads work in it: a long micro-step does not
 * keep a cell that joins waiting.
 */
import type { MemoryPlan } from '../../../kernels/plan.ts'
import type { WasmMemory } from '../../../kernels/wasm.ts'
import type { GradientSums } from '../../../training/gradient-sums.ts'

export class SharedVectors {
  readonly #weights: Float32Array
  readonly #sums: BigInt64Array
  readonly #sequence: Int32Array

  constructor(plan: MemoryPlan, memory: WasmMemory) {
    const { count } = plan.layout
    this.#weights = new Float32Array(memory.buffer, plan.weights, count)
    this.#sums = new BigInt64Array(memory.buffer, plan.sums, count + 1)
    this.#sequence = new Int32Array(memory.buffer, plan.sumsSequence, 1)
  }

  /** A copy, [P]. Whole when no command that changes the weights is under way. */
  weights(): Float32Array {
    return this.#weights.slice()
  }

  /** A copy, [P + 1], or undefined when a micro-step was added to the sums meanwhile. */
  gradients(): GradientSums | undefined {
    const before = Atomics.load(this.#sequence, 0)
    if (before % 2 !== 0) return undefined
    const copy = this.#sums.slice()
    return Atomics.load(this.#sequence, 0) === before ? copy : undefined
  }
}
