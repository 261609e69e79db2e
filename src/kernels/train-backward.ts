/**
 * @file Backward pass over the layers, writing the gradient of one micro-step. Runs on every thread.
 *
 * Gradients of rows are dealt in blocks; the gradient of a weight is divided by its output rows, so that each
 * element is summed over tokens by one thread, in order.
 */
import { eachBlock, type Machine, share } from './machine.ts'
import { blockPositions, ROW_BLOCK } from './plan.ts'
import { packHeads, tileRegion } from './train-forward.ts'
import { STORE } from './wasm.ts'

/** Reads and consumes `plan.train.dStream`. @param t rows. */
export function trainBackward(m: Machine, t: number): void {
  const { train, shape, layout } = m.plan
  for (let i = shape.layers - 1; i >= 0; i--) {
    eachBlock(m, t, ROW_BLOCK, (first, rows) => feedForwardBackward(m, i, first, rows))
    m.barrier()
    feedForwardWeights(m, i, t)
    m.barrier()
    eachBlock(m, t, ROW_BLOCK, (first, rows) => attentionInputs(m, i, first, rows))
    m.barrier()
    attentionBackward(m, i, t)
    m.barrier()
    eachBlock(m, t, ROW_BLOCK, (first, rows) => projectionBackward(m, i, first, rows))
    m.barrier()
    projectionWeights(m, i, t)
    m.barrier()
    const w = layout.layers[i]
    const a = train.layers[i]
    if (w === undefined || a === undefined) return
    eachBlock(m, t, ROW_BLOCK, (first, rows) => streamBackward(m, a.entry, w.norm1, first, rows))
  }
  m.barrier()
  const [from, to] = share(m, shape.hiddenSize, 4)
  const dEmbedding = m.plan.gradients + layout.embedding * 4
  m.k.scatterAdd(train.dStream, train.tokens, t, shape.hiddenSize, dEmbedding, from, to)
  m.barrier()
}

function layerOf(m: Machine, layer: number) {
  const w = m.plan.layout.layers[layer]
  const a = m.plan.train.layers[layer]
  if (w === undefined || a === undefined) throw new RangeError(`no layer ${layer}`)
  return { w, a }
}

/** dStream += gradient of the norm at x for dNormed. */
function streamBackward(m: Machine, x: number, norm: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape } = plan
  const at = first * shape.hiddenSize * 4
  const gain = plan.weights + norm * 4
  const inverse = train.inverse + first * 4
  k.normBackward(x + at, train.dNormed + at, rows, shape.hiddenSize, gain, inverse, train.dStream + at, 1)
}

function feedForwardBackward(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape } = plan
  const { w, a } = layerOf(m, layer)
  const d = shape.hiddenSize
  const ff = shape.ffSize
  const at = first * d * 4
  const wide = first * ff * 4
  const dActivation = plan.threadScratch[m.thread] ?? 0
  const gain = plan.weights + w.norm2 * 4
  k.normRows(a.middle + at, rows, d, gain, shape.normEpsilon, train.normed + at, train.inverse + first * 4)
  k.gemm(train.dStream + at, d * 4, plan.backwardPanels + w.down * 4, dActivation, ff * 4, rows, d, ff / 8, STORE)
  const dGateUp = train.dGateUp + 2 * wide
  k.swigluBackward(a.gateUp + 2 * wide, dActivation, rows, ff, dGateUp, train.activation + wide)
  k.gemm(dGateUp, ff * 8, plan.backwardPanels + w.gu * 4, train.dNormed + at, d * 4, rows, 2 * ff, d / 8, STORE)
}

function feedForwardWeights(m: Machine, layer: number, t: number): void {
  const { plan, k } = m
  const { train, shape } = plan
  const { w, a } = layerOf(m, layer)
  const d = shape.hiddenSize
  const ff = shape.ffSize
  weightGradient(m, { dy: train.dStream, n: d, x: train.activation, k: ff, offset: w.down, t })
  weightGradient(m, { dy: train.dGateUp, n: 2 * ff, x: train.normed, k: d, offset: w.gu, t })
  const [from, to] = share(m, d, 4)
  k.normGain(a.middle, train.dNormed, t, d, train.inverse, plan.gradients + w.norm2 * 4, from, to)
}

interface WeightGradient {
  /** [T, n] and [T, k], row-major. */
  readonly dy: number
  readonly n: number
  readonly x: number
  readonly k: number
  readonly offset: number
  readonly t: number
}

function weightGradient(m: Machine, g: WeightGradient): void {
  const { plan } = m
  const [from, to] = share(m, g.n, 4)
  const out = plan.gradients + g.offset * 4
  const product = [g.dy, g.n * 4, g.x, g.k * 4, out, g.k * 4] as const
  m.k.gemmTransposed(...product, g.t, from, to, g.k, plan.threadScratch[m.thread] ?? 0)
}

function attentionInputs(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape, attentionWidth, keyWidth, qkvWidth } = plan
  const { w, a } = layerOf(m, layer)
  const d = shape.hiddenSize
  const hd = shape.headDim
  streamBackward(m, a.middle, w.norm2, first, rows)
  const dStream = train.dStream + first * d * 4
  const at = first * attentionWidth * 4
  const panels = plan.backwardPanels + w.o * 4
  k.gemm(dStream, d * 4, panels, train.dAttention + at, attentionWidth * 4, rows, d, attentionWidth / 8, STORE)
  const delta = train.delta + first * shape.heads * 4
  k.rowDots(a.attention + at, train.dAttention + at, rows, shape.heads, shape.headDim, delta)
  packHeads(m, a.qkv + attentionWidth * 4, first, rows, train.keyTiles[0])
  packHeads(m, a.qkv + (attentionWidth + keyWidth) * 4, first, rows, train.valueTiles)
  const keys = a.qkv + first * qkvWidth * 4 + attentionWidth * 4
  for (let h = 0; h < shape.kvHeads; h++) {
    const to = h * tileRegion(m) + first * hd * 4
    k.copyRows(keys + h * hd * 4, qkvWidth * 4, train.headRows[0] + to, hd * 4, rows, hd)
    for (const sum of [train.dKeys, train.dValues]) m.f32.fill(0, (sum + to) / 4, (sum + to) / 4 + rows * hd)
  }
}

function attentionBackward(m: Machine, layer: number, t: number): void {
  const { plan } = m
  const { train, shape, attentionWidth } = plan
  const { w, a } = layerOf(m, layer)
  const size = blockPositions(shape)
  const [from, to] = share(m, shape.kvHeads)
  for (let h = from; h < to; h++) {
    for (let at = 0; at < t; at += size) attendBlockBackward(m, layer, h, at, Math.min(size, t - at))
  }
  const d = shape.hiddenSize
  weightGradient(m, { dy: train.dStream, n: d, x: a.attention, k: attentionWidth, offset: w.o, t })
}

function attendBlockBackward(m: Machine, layer: number, h: number, at: number, count: number): void {
  const { plan, k } = m
  const { train, shape, attentionWidth } = plan
  const { a } = layerOf(m, layer)
  const hd = shape.headDim
  const group = shape.heads / shape.kvHeads
  const ld = plan.qkvWidth * 4
  const b = at / blockPositions(shape)
  const list = train.lists + (m.i32[train.listStart / 4 + b] ?? 0) * 4
  const n = m.i32[train.listLength / 4 + b] ?? 0
  const head = h * group * hd * 4
  const query = [a.qkv + at * ld + head, ld] as const
  const dOut = [train.dAttention + at * attentionWidth * 4 + head, attentionWidth * 4, count, group, hd] as const
  const region = h * tileRegion(m)
  const stat = (at * shape.heads + h * group) * 4
  k.attendBackward(
    ...query,
    ...dOut,
    ...([train.keyTiles[0] + region, train.valueTiles + region, train.headRows[0] + region, hd * 4] as const),
    ...([list, n, train.ends, at] as const),
    plan.threadScratch[m.thread] ?? 0,
    ...([a.lse + stat, train.delta + stat, shape.heads * 4] as const),
    ...([train.dQkv + at * ld + head, ld, train.dKeys + region, train.dValues + region, hd * 4] as const),
  )
}

function projectionBackward(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape, qkvWidth } = plan
  const { w, a } = layerOf(m, layer)
  const d = shape.hiddenSize
  const hd = shape.headDim
  const at = first * d * 4
  const ld = qkvWidth * 4
  const dQkv = train.dQkv + first * ld
  const dKey = dQkv + plan.attentionWidth * 4
  for (let h = 0; h < shape.kvHeads; h++) {
    const from = h * tileRegion(m) + first * hd * 4
    k.copyRows(train.dKeys + from, hd * 4, dKey + h * hd * 4, ld, rows, hd)
    k.copyRows(train.dValues + from, hd * 4, dKey + (plan.keyWidth + h * hd) * 4, ld, rows, hd)
  }
  const positions = train.positions + first * 4
  k.ropeRows(dQkv, ld, rows, positions, plan.ropeTable, shape.heads, shape.kvHeads, hd, 1 / Math.sqrt(hd), -1)
  const gain = plan.weights + w.norm1 * 4
  k.normRows(a.entry + at, rows, d, gain, shape.normEpsilon, train.normed + at, train.inverse + first * 4)
  k.gemm(dQkv, ld, plan.backwardPanels + w.qkv * 4, train.dNormed + at, d * 4, rows, qkvWidth, d / 8, STORE)
}

function projectionWeights(m: Machine, layer: number, t: number): void {
  const { plan, k } = m
  const { train, shape, qkvWidth } = plan
  const { w, a } = layerOf(m, layer)
  const d = shape.hiddenSize
  weightGradient(m, { dy: train.dQkv, n: qkvWidth, x: train.normed, k: d, offset: w.qkv, t })
  const [from, to] = share(m, d, 4)
  k.normGain(a.entry, train.dNormed, t, d, train.inverse, plan.gradients + w.norm1 * 4, from, to)
}
