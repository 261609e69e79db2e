/**
 * @file Forward pass over a packed forest, keeping what the backward pass reads. Runs on every thread.
 *
 * Rows are dealt to threads in blocks; the only wait of a layer is before attention, which reads the keys of
 * all rows.
 */
import { eachBlock, type Machine } from './machine.ts'
import { blockPositions, ROW_BLOCK } from './plan.ts'
import { ADD, STORE } from './wasm.ts'

/** Residual stream after the last layer, [T, d], in `plan.train.exit`. @param t rows. */
export function trainForward(m: Machine, t: number): void {
  const { plan, k } = m
  const { train, shape, layout } = plan
  const d = shape.hiddenSize
  const entry = train.layers[0]?.entry ?? train.exit
  eachBlock(m, t, ROW_BLOCK, (first, rows) => {
    k.embedRows(train.tokens + first * 4, rows, plan.weights + layout.embedding * 4, d, entry + first * d * 4)
  })
  for (let i = 0; i < shape.layers; i++) {
    eachBlock(m, t, ROW_BLOCK, (first, rows) => projectKeys(m, i, first, rows))
    m.barrier()
    eachBlock(m, t, ROW_BLOCK, (first, rows) => {
      attendBlock(m, i, first, rows)
      feedForward(m, i, first, rows)
    })
  }
  m.barrier()
}

/** Scratch of one row block: normed [B, d], activation [B, ff], inverse [B]. */
function blockScratch(m: Machine): { readonly normed: number; readonly activation: number; readonly inverse: number } {
  const { hiddenSize, ffSize } = m.plan.shape
  const normed = m.plan.threadScratch[m.thread] ?? 0
  const activation = normed + ROW_BLOCK * hiddenSize * 4
  return { normed, activation, inverse: activation + ROW_BLOCK * ffSize * 4 }
}

function projectKeys(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape, layout, qkvWidth } = plan
  const d = shape.hiddenSize
  const hd = shape.headDim
  const w = layout.layers[layer]
  const a = train.layers[layer]
  if (w === undefined || a === undefined) return
  const { normed, inverse } = blockScratch(m)
  const ld = qkvWidth * 4
  const qkv = a.qkv + first * ld
  k.normRows(a.entry + first * d * 4, rows, d, plan.weights + w.norm1 * 4, shape.normEpsilon, normed, inverse)
  k.gemm(normed, d * 4, plan.forwardPanels + w.qkv * 4, qkv, ld, rows, d, qkvWidth / 8, STORE)
  const positions = train.positions + first * 4
  k.ropeRows(qkv, ld, rows, positions, plan.ropeTable, shape.heads, shape.kvHeads, hd, 1 / Math.sqrt(hd), 1)
  packHeads(m, a.qkv + plan.attentionWidth * 4, first, rows, train.keyTiles[layer & 1] ?? 0)
  const values = a.qkv + (plan.attentionWidth + plan.keyWidth) * 4
  for (let h = 0; h < shape.kvHeads; h++) {
    const to = (train.headRows[layer & 1] ?? 0) + h * tileRegion(m)
    k.copyRows(values + first * ld + h * hd * 4, ld, to + first * hd * 4, hd * 4, rows, hd)
  }
}

/** Packs the key heads (or value heads) of some rows into tiles, one region of [T, hd] per head. */
export function packHeads(m: Machine, x: number, first: number, rows: number, tiles: number): void {
  const { plan, k } = m
  const hd = plan.shape.headDim
  for (let h = 0; h < plan.shape.kvHeads; h++) {
    k.packTiles(x + h * hd * 4, plan.qkvWidth * 4, first, rows, hd, tiles + h * tileRegion(m))
  }
}

/** Bytes of the tiles, or of the rows, of one head. */
export function tileRegion(m: Machine): number {
  const { maxTrainTokens } = m.plan.capacity
  return Math.ceil(maxTrainTokens / ROW_BLOCK) * ROW_BLOCK * m.plan.shape.headDim * 4
}

function attendBlock(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape, attentionWidth } = plan
  const a = train.layers[layer]
  if (a === undefined) return
  const hd = shape.headDim
  const group = shape.heads / shape.kvHeads
  const size = blockPositions(shape)
  const ld = plan.qkvWidth * 4
  for (let at = first; at < first + rows; at += size) {
    const b = at / size
    const list = train.lists + (m.i32[train.listStart / 4 + b] ?? 0) * 4
    const n = m.i32[train.listLength / 4 + b] ?? 0
    const count = Math.min(size, first + rows - at)
    for (let h = 0; h < shape.kvHeads; h++) {
      const query = [a.qkv + at * ld + h * group * hd * 4, ld, count, group, hd] as const
      const tiles = (train.keyTiles[layer & 1] ?? 0) + h * tileRegion(m)
      const values = (train.headRows[layer & 1] ?? 0) + h * tileRegion(m)
      const out = a.attention + at * attentionWidth * 4 + h * group * hd * 4
      const lse = a.lse + (at * shape.heads + h * group) * 4
      const scratch = plan.threadScratch[m.thread] ?? 0
      k.attend(
        ...query,
        ...([tiles, values, hd * 4, list, n, 0, train.ends, at] as const),
        ...([scratch, out, attentionWidth * 4, lse, shape.heads * 4] as const),
      )
    }
  }
}

function feedForward(m: Machine, layer: number, first: number, rows: number): void {
  const { plan, k } = m
  const { train, shape, layout, attentionWidth } = plan
  const d = shape.hiddenSize
  const ff = shape.ffSize
  const w = layout.layers[layer]
  const a = train.layers[layer]
  if (w === undefined || a === undefined) return
  const next = train.layers[layer + 1]?.entry ?? train.exit
  const { normed, activation, inverse } = blockScratch(m)
  const bytes = d * 4
  const middle = a.middle + first * bytes
  const out = next + first * bytes
  const gateUp = a.gateUp + first * 2 * ff * 4
  const attention = a.attention + first * attentionWidth * 4
  m.f32.copyWithin(middle / 4, (a.entry + first * bytes) / 4, (a.entry + (first + rows) * bytes) / 4)
  k.gemm(attention, attentionWidth * 4, plan.forwardPanels + w.o * 4, middle, bytes, rows, attentionWidth, d / 8, ADD)
  k.normRows(middle, rows, d, plan.weights + w.norm2 * 4, shape.normEpsilon, normed, inverse)
  k.gemm(normed, bytes, plan.forwardPanels + w.gu * 4, gateUp, ff * 8, rows, d, ff / 4, STORE)
  k.swigluRows(gateUp, rows, ff, activation, 0, ff)
  m.f32.copyWithin(out / 4, middle / 4, middle / 4 + rows * d)
  k.gemm(activation, ff * 4, plan.forwardPanels + w.down * 4, out, bytes, rows, ff, d / 8, ADD)
}
