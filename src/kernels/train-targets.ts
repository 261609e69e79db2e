/**
 * @file The LM head on target rows only, in chunks: log-probs, losses, and the gradient that enters the network.
 * Runs on every thread.
 */
import { eachBlock, type Machine, share } from './machine.ts'
import { type TokenObjective, tokenLoss } from './objective.ts'
import { TARGET_CHUNK } from './plan.ts'
import { STORE } from './wasm.ts'

const ROWS = 32

/** Zeroes the gradient of the residual stream, then adds every target's. @param t rows. @param r targets. */
export function trainTargets(m: Machine, t: number, r: number, objective: TokenObjective): void {
  const { train, shape } = m.plan
  const [from, to] = share(m, t * shape.hiddenSize)
  m.f32.fill(0, train.dStream / 4 + from, train.dStream / 4 + to)
  m.barrier()
  for (let first = 0; first < r; first += TARGET_CHUNK) {
    const size = Math.min(TARGET_CHUNK, r - first)
    eachBlock(m, size, ROWS, (at, rows) => scoreTargets(m, first, at, rows, objective))
    m.barrier()
    spreadChunk(m, first, size)
    m.barrier()
  }
}

/** Targets first + [at, at + rows): from hidden state to logits to their gradient, and back to the hidden state. */
function scoreTargets(m: Machine, first: number, at: number, rows: number, objective: TokenObjective): void {
  const { plan, k } = m
  const { train, shape, layout } = plan
  const d = shape.hiddenSize
  const bytes = d * 4
  const padded = layout.paddedVocab
  const hidden = train.chunkHidden + at * bytes
  const normed = train.chunkNormed + at * bytes
  const inverse = train.chunkInverse + at * 4
  const logits = train.chunkLogits + at * padded * 4
  const gain = plan.weights + layout.finalNorm * 4
  k.embedRows(train.targetRows + (first + at) * 4, rows, train.exit, d, hidden)
  k.normRows(hidden, rows, d, gain, shape.normEpsilon, normed, inverse)
  k.gemm(normed, bytes, plan.forwardPanels + layout.embedding * 4, logits, padded * 4, rows, d, padded / 8, STORE)
  for (let i = 0; i < rows; i++) lossRow(m, first + at + i, logits + i * padded * 4, objective)
  const dNormed = train.chunkDNormed + at * bytes
  const panels = plan.backwardPanels + layout.embedding * 4
  k.gemm(logits, padded * 4, panels, dNormed, bytes, rows, padded, d / 8, STORE)
  k.normBackward(hidden, dNormed, rows, d, gain, inverse, train.chunkDHidden + at * bytes, 0)
}

function lossRow(m: Machine, target: number, logits: number, objective: TokenObjective): void {
  const { plan, k, f32, i32, f64 } = m
  const { train, shape, layout } = plan
  const padded = layout.paddedVocab
  const id = i32[train.targetIds / 4 + target] ?? 0
  const lse = k.logSumExp(logits, shape.vocabSize, padded)
  const logp = Math.fround((f32[logits / 4 + id] ?? NaN) - lse)
  const h = k.entropy(logits, padded, lse)
  const weight = f32[train.targetWeights / 4 + target] ?? 0
  const advantage = f32[train.targetAdvantages / 4 + target] ?? 0
  const loss = tokenLoss(objective, logp, advantage, f32[train.targetBehavior / 4 + target] ?? NaN)
  f32[train.targetLogprobs / 4 + target] = logp
  f64[train.targetLosses / 8 + target] = weight * loss.loss
  f64[train.targetEntropies / 8 + target] = weight * h
  i32[train.targetFates / 4 + target] = loss.fate === 'trained' ? 0 : loss.fate === 'clipped' ? 1 : 2
  k.logitsGradient(logits, padded, lse, id, weight * loss.slope, weight * loss.bonus, h)
}

function spreadChunk(m: Machine, first: number, size: number): void {
  const { plan, k } = m
  const { train, shape, layout } = plan
  const d = shape.hiddenSize
  const padded = layout.paddedVocab
  const scratch = plan.threadScratch[m.thread] ?? 0
  const [from, to] = share(m, padded, 4)
  const dEmbedding = plan.gradients + layout.embedding * 4
  const product = [train.chunkLogits, padded * 4, train.chunkNormed, d * 4, dEmbedding, d * 4] as const
  k.gemmTransposed(...product, size, from, to, d, scratch)
  const [left, right] = share(m, d, 4)
  const dGain = plan.gradients + layout.finalNorm * 4
  k.normGain(train.chunkHidden, train.chunkDNormed, size, d, train.chunkInverse, dGain, left, right)
  k.scatterAdd(train.chunkDHidden, train.targetRows + first * 4, size, d, train.dStream, left, right)
}
