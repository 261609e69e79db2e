/**
 * @file One step of the sampler: any mix of prompt chunks and single tokens of many sequences, each against its
 * cache, down to the logits of the rows asked for. Runs on every thread.
 *
 * Caches are made of pages of 8 positions, which sequences with a common beginning share.
 * Rows, segments and outputs are read from `plan.sample`. The bits of a row do not depend on its company.
 */
import { type Machine, share } from './machine.ts'
import { blockPositions, TILE } from './plan.ts'
import { ADD, STORE } from './wasm.ts'

export interface StepSize {
  readonly rows: number
  readonly segments: number
  /** Rows whose logits are wanted, at most the number of slots. */
  readonly outputs: number
}

export function sampleStep(m: Machine, size: StepSize): void {
  const { plan, k } = m
  const { sample, shape, layout } = plan
  const d = shape.hiddenSize
  const ff = shape.ffSize
  const { rows } = size
  const [firstRow, endRow] = share(m, rows)
  const at = firstRow * d * 4
  const table = plan.weights + layout.embedding * 4
  k.embedRows(sample.tokens + firstRow * 4, endRow - firstRow, table, d, sample.stream + at)
  layout.layers.forEach((w, layer) => {
    normShare(m, rows, w.norm1)
    product(m, { a: sample.normed, k: d, w: w.qkv, c: sample.qkv, n: plan.qkvWidth, rows, mode: STORE })
    m.barrier()
    storeKeys(m, layer, rows)
    m.barrier()
    attendSegments(m, layer, size.segments)
    m.barrier()
    const width = plan.attentionWidth
    product(m, { a: sample.attention, k: width, w: w.o, c: sample.stream, n: d, rows, mode: ADD })
    m.barrier()
    normShare(m, rows, w.norm2)
    const [from, to] = share(m, ff, 8)
    const panels = plan.forwardPanels + w.gu * 4
    const columns = (to - from) / 8
    for (const start of [from, ff + from]) {
      const c = sample.gateUp + start * 4
      k.gemm(sample.normed, d * 4, panels + start * d * 4, c, ff * 8, rows, d, columns, STORE)
    }
    k.swigluRows(sample.gateUp, rows, ff, sample.activation, from, to)
    m.barrier()
    product(m, { a: sample.activation, k: ff, w: w.down, c: sample.stream, n: d, rows, mode: ADD })
    m.barrier()
  })
  outputLogits(m, size.outputs)
}

interface Product {
  readonly a: number
  readonly k: number
  readonly w: number
  readonly c: number
  readonly n: number
  readonly rows: number
  readonly mode: number
}

/** This thread's columns of c = a W^T. */
function product(m: Machine, p: Product): void {
  const [from, to] = share(m, p.n / 8)
  const b = m.plan.forwardPanels + (p.w + from * 8 * p.k) * 4
  m.k.gemm(p.a, p.k * 4, b, p.c + from * 32, p.n * 4, p.rows, p.k, to - from, p.mode)
}

function normShare(m: Machine, rows: number, norm: number): void {
  const { plan, k } = m
  const { sample, shape } = plan
  const d = shape.hiddenSize
  const [first, end] = share(m, rows)
  const at = first * d * 4
  const gain = plan.weights + norm * 4
  const inverse = sample.inverse + first * 4
  k.normRows(sample.stream + at, end - first, d, gain, shape.normEpsilon, sample.normed + at, inverse)
  m.barrier()
}

/** Byte offsets of one head's key pages and value pages. */
function cacheOf(m: Machine, layer: number, head: number): readonly [tiles: number, values: number] {
  const { sample, shape } = m.plan
  const at = sample.cache + (layer * 2 * shape.kvHeads + head) * sample.headBytes
  return [at, at + shape.kvHeads * sample.headBytes]
}

/** Byte offset of the page table of the sequence that a row belongs to. */
function pageTable(m: Machine, row: number): number {
  const { sample } = m.plan
  return sample.pageTables + (m.i32[sample.slots / 4 + row] ?? 0) * sample.pagesPerSlot * 4
}

function storeKeys(m: Machine, layer: number, rows: number): void {
  const { plan, k, i32 } = m
  const { sample, shape } = plan
  const hd = shape.headDim
  const ld = plan.qkvWidth * 4
  const [first, end] = share(m, rows)
  const q = sample.qkv + first * ld
  const positions = sample.positions + first * 4
  k.ropeRows(q, ld, end - first, positions, plan.ropeTable, shape.heads, shape.kvHeads, hd, 1 / Math.sqrt(hd), 1)
  for (let i = first; i < end; i++) {
    const position = i32[sample.positions / 4 + i] ?? 0
    const page = (i32[pageTable(m, i) / 4 + Math.floor(position / TILE)] ?? 0) >> 1
    const place = page * TILE + (position % TILE)
    const key = sample.qkv + i * ld + plan.attentionWidth * 4
    for (let h = 0; h < shape.kvHeads; h++) {
      const at = key + h * hd * 4
      k.storeKeyValue(at, at + plan.keyWidth * 4, place, hd, ...cacheOf(m, layer, h))
    }
  }
}

/** Head by head, so that pages which many sequences share stay in the second-level cache. */
function attendSegments(m: Machine, layer: number, segments: number): void {
  const { plan, i32 } = m
  const { sample, shape } = plan
  const size = blockPositions(shape)
  const blocks: [first: number, rows: number][] = []
  for (let s = 0; s < segments; s++) {
    const first = i32[sample.segmentRow / 4 + s] ?? 0
    const rows = i32[sample.segmentRows / 4 + s] ?? 0
    for (let at = 0; at < rows; at += size) blocks.push([first + at, Math.min(size, rows - at)])
  }
  const [from, to] = share(m, blocks.length * shape.kvHeads)
  for (let task = from; task < to; task++) {
    const [first, rows] = blocks[task % blocks.length] ?? [0, 0]
    attendRows(m, layer, Math.floor(task / blocks.length), first, rows)
  }
}

function attendRows(m: Machine, layer: number, head: number, row: number, count: number): void {
  const { plan, k, i32 } = m
  const { sample, shape, attentionWidth } = plan
  const hd = shape.headDim
  const group = shape.heads / shape.kvHeads
  const ld = plan.qkvWidth * 4
  const position = i32[sample.positions / 4 + row] ?? 0
  const [tiles, values] = cacheOf(m, layer, head)
  const n = Math.ceil((position + count) / TILE)
  const tail = n - Math.floor((position + 1) / TILE)
  const at = head * group * hd * 4
  k.attend(
    ...([sample.qkv + row * ld + at, ld, count, group, hd] as const),
    ...([tiles, values, hd * 4, pageTable(m, row), n, tail, 0, position] as const),
    plan.threadScratch[m.thread] ?? 0,
    ...([sample.attention + row * attentionWidth * 4 + at, attentionWidth * 4, 0, 0] as const),
  )
}

/** Logits of the output rows, in their order. */
function outputLogits(m: Machine, outputs: number): void {
  const { plan, k } = m
  const { sample, shape, layout } = plan
  const d = shape.hiddenSize
  const [first, end] = share(m, outputs)
  for (let i = first; i < end; i++) {
    const row = m.i32[sample.outputRows / 4 + i] ?? 0
    const at = sample.stream + row * d * 4
    const gain = plan.weights + layout.finalNorm * 4
    k.normRows(at, 1, d, gain, shape.normEpsilon, sample.normed + i * d * 4, sample.inverse + i * 4)
  }
  m.barrier()
  const n = layout.paddedVocab
  product(m, { a: sample.normed, k: d, w: layout.embedding, c: sample.logits, n, rows: outputs, mode: STORE })
  m.barrier()
}
