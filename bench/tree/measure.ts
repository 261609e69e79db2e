/** @file Time and gradient of one training step on the embedded engine, for the same targets in several forms. */
import { createEmbeddedEngine, type EmbeddedEngine } from '../../src/adapters/engine/embedded/embedded-engine.ts'
import type { ModelShape } from '../../src/kernels/shape.ts'
import type { Objective } from '../../src/training/batch.ts'
import type { PackedMicroStep } from '../../src/training/forest.ts'
import { gradientOf } from '../../src/training/gradient-sums.ts'

const OBJECTIVE: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.2,
  clipHigh: 0.28,
  ratioBound: 4,
  entropyWeight: 0.01,
}

export interface StepTime {
  /** Of the process, nearly all of it the engine's one thread. [ms] */
  readonly cpuMs: number
  readonly wallMs: number
}

export interface FormFigures {
  /** Rows that the engine computes, copies of prefixes in several micro-steps included. [tokens] */
  readonly rows: number
  readonly microSteps: number
  readonly targets: number
  /** What the packer expects of dense work and attention together, in rows of dense work. */
  readonly cost: number
  /** Of each round. */
  readonly times: readonly StepTime[]
}

export interface Compared {
  readonly forms: Readonly<Record<string, FormFigures>>
  /** Norm of the difference of the gradients of `tree` and of each other form, over the norm of the latter. */
  readonly gradientError: Readonly<Record<string, number>>
}

/** Work of attending to one earlier token over the dense work of one row, forward and backward. */
export function contextCostOf(s: ModelShape): number {
  const projections = s.hiddenSize * (2 * s.heads + 2 * s.kvHeads) * s.headDim + 3 * s.hiddenSize * s.ffSize
  // Forward 2 products of a head's width for each earlier token, backward 5, against 3 of every weight.
  return (7 * s.heads * s.headDim) / (3 * projections)
}

/**
 * @param rounds each trains every form once, one after the other, so that all forms see the same machine. A round before
 * them, in which code is compiled and memory touched, gives the gradients and no time.
 */
export async function compare(
  model: ModelShape,
  forms: Readonly<Record<string, readonly PackedMicroStep[]>>,
  rounds: number,
): Promise<Compared> {
  const all = Object.values(forms).flat()
  const longest = (of: (step: PackedMicroStep) => number): number => Math.max(...all.map(of))
  const engine = await createEmbeddedEngine({
    model,
    slots: 1,
    maxContext: longest(({ batch }) => batch.positions.reduce((a, p) => Math.max(a, p), 0)) + 1,
    maxTrainTokens: longest(({ batch }) => batch.tokenIds.length),
    seed: 1,
  })
  try {
    const times: Record<string, StepTime[]> = {}
    const gradients: Record<string, Float64Array> = {}
    for (const [name, steps] of Object.entries(forms)) {
      await train(engine, steps)
      gradients[name] = Float64Array.from(gradientOf(await engine.exportGradients()))
    }
    for (let round = 0; round < rounds; round++) {
      for (const [name, steps] of Object.entries(forms)) (times[name] ??= []).push(await train(engine, steps))
    }
    const { tree = new Float64Array(0), ...others } = gradients
    return {
      forms: Object.fromEntries(
        Object.entries(forms).map(([name, steps]) => [name, figures(steps, times[name] ?? [])]),
      ),
      gradientError: Object.fromEntries(
        Object.entries(others).map(([name, flat]) => [name, norm(tree.map((g, i) => g - (flat[i] ?? 0))) / norm(flat)]),
      ),
    }
  } finally {
    await engine.close()
  }
}

async function train(engine: EmbeddedEngine, steps: readonly PackedMicroStep[]): Promise<StepTime> {
  await engine.zeroGradients()
  const cpu = process.cpuUsage()
  const startedAt = performance.now()
  for (const { batch } of steps) await engine.forwardBackward(batch, OBJECTIVE)
  const { user, system } = process.cpuUsage(cpu)
  return { cpuMs: (user + system) / 1000, wallMs: performance.now() - startedAt }
}

function figures(steps: readonly PackedMicroStep[], times: readonly StepTime[]): FormFigures {
  const sum = (of: (step: PackedMicroStep) => number): number => steps.reduce((total, step) => total + of(step), 0)
  return {
    rows: sum(({ batch }) => batch.tokenIds.length),
    microSteps: steps.length,
    targets: sum(({ batch }) => batch.targetRows.length),
    cost: Math.round(sum(({ cost }) => cost)),
    times,
  }
}

function norm(vector: Float64Array): number {
  return Math.sqrt(vector.reduce((sum, g) => sum + g * g, 0))
}
