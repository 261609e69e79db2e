/** @file Weights in the layouts the products read, and the optimizer. All functions run on every thread. */
import { type Machine, share } from './machine.ts'
import { NORM_BLOCK } from './plan.ts'

interface Matrix {
  readonly offset: number
  readonly n: number
  readonly k: number
  /** Rows with padding; only the embedding has any. */
  readonly padded: number
}

const of = (offset: number, n: number, k: number, padded = n): Matrix => ({ offset, n, k, padded })

function matrices({ plan }: Machine): readonly Matrix[] {
  const { layout, shape, qkvWidth, attentionWidth } = plan
  const d = shape.hiddenSize
  return [
    ...layout.layers.flatMap((l) => [
      of(l.qkv, qkvWidth, d),
      of(l.o, d, attentionWidth),
      of(l.gu, 2 * shape.ffSize, d),
      of(l.down, d, shape.ffSize),
    ]),
    of(layout.embedding, shape.vocabSize, d, layout.paddedVocab),
  ]
}

/** Panels for y = x W^T. */
export function packForward(m: Machine): void {
  const { weights, forwardPanels } = m.plan
  for (const w of matrices(m)) {
    const [from, to] = share(m, w.padded / 8)
    m.k.packRows(weights + w.offset * 4, w.n, w.k, forwardPanels + w.offset * 4, from, to)
  }
  m.barrier()
}

/** Panels for dx = dy W. */
export function packBackward(m: Machine): void {
  const { weights, backwardPanels } = m.plan
  for (const w of matrices(m)) {
    const [from, to] = share(m, w.k / 8)
    m.k.packColumns(weights + w.offset * 4, w.n, w.padded, w.k, backwardPanels + w.offset * 4, from, to)
  }
  m.barrier()
}

export interface AdamParams {
  readonly learningRate: number
  readonly beta1: number
  readonly beta2: number
  readonly epsilon: number
  readonly weightDecay: number
  readonly gradientClip: number
}

/** Global norm of the gradient, the same for any number of threads. Every thread returns it. */
export function gradientNorm(m: Machine): number {
  const { gradients, layout, partials } = m.plan
  const blocks = Math.ceil(layout.count / NORM_BLOCK)
  const [from, to] = share(m, blocks)
  for (let b = from; b < to; b++) {
    const size = Math.min(NORM_BLOCK, layout.count - b * NORM_BLOCK)
    m.f64[partials / 8 + b] = m.k.sumSquares(gradients + b * NORM_BLOCK * 4, size)
  }
  m.barrier()
  let sum = 0
  for (let b = 0; b < blocks; b++) sum += m.f64[partials / 8 + b] ?? NaN
  m.barrier()
  return Math.sqrt(sum)
}

/** @param step counts from 1. */
export function adamStep(m: Machine, p: AdamParams, norm: number, step: number): void {
  const { weights, gradients, moment1, moment2, layout } = m.plan
  const scale = p.gradientClip > 0 && norm > p.gradientClip ? p.gradientClip / norm : 1
  const rate = p.learningRate / (1 - p.beta1 ** step)
  const correction = 1 / Math.sqrt(1 - p.beta2 ** step)
  for (const t of layout.tensors) {
    const [from, to] = share(m, t.size, 4)
    const at = (t.offset + from) * 4
    const decay = t.decays ? p.learningRate * p.weightDecay : 0
    const vectors = [weights + at, gradients + at, moment1 + at, moment2 + at, to - from] as const
    m.k.adamw(...vectors, scale, p.beta1, p.beta2, rate, correction, p.epsilon, decay)
  }
  m.barrier()
}
