/** @file Where everything lives in the one shared memory, allocated once and reused. */
import { type ModelShape, type ParameterLayout, parameterLayout } from './shape.ts'

export interface Capacity {
  readonly threads: number
  /** Sequences with a resident cache. */
  readonly slots: number
  /** Longest sequence. [tokens] */
  readonly maxContext: number
  /** Rows of one micro-batch. [tokens] */
  readonly maxTrainTokens: number
  /** Rows of one sampling step. [tokens] */
  readonly stepRows: number
}

/** Rows that one thread takes at a time; a multiple of the key tile. */
export const ROW_BLOCK = 64
/** Targets whose logits exist at once. */
export const TARGET_CHUNK = 256
/** Keys of one tile. */
export const TILE = 8
/** Elements of one partial result, a fixed number, so that threads do not change the norm. */
export const NORM_BLOCK = 4096

/** Positions of one attention block, so that it has about 32 rows. */
export function blockPositions(s: ModelShape): number {
  const group = s.heads / s.kvHeads
  return group <= 1 ? 32 : group <= 2 ? 16 : 8
}

/** Byte offsets. Float regions are 64-byte aligned. */
export type MemoryPlan = ReturnType<typeof planMemory>

class Arena {
  #at: number
  constructor(at: number) {
    this.#at = at
  }
  /** @param count elements of `width` bytes. */
  take(count: number, width = 4): number {
    const at = this.#at
    this.#at = Math.ceil((at + count * width) / 64) * 64
    return at
  }
  get size(): number {
    return this.#at
  }
}

/** The first page belongs to the static data of the kernels. */
const BASE = 65536

export function planMemory(s: ModelShape, c: Capacity) {
  const a = new Arena(BASE)
  const layout: ParameterLayout = parameterLayout(s)
  const d = s.hiddenSize
  const attentionWidth = s.heads * s.headDim
  const keyWidth = s.kvHeads * s.headDim
  const qkvWidth = attentionWidth + 2 * keyWidth
  const control = a.take(256)
  const sumsSequence = a.take(1)
  const ropeTable = a.take(c.maxContext * s.headDim)
  const weights = a.take(layout.paddedCount)
  const forwardPanels = a.take(layout.paddedCount)
  const backwardPanels = a.take(layout.paddedCount)
  const gradients = a.take(layout.paddedCount)
  const sums = a.take(layout.count + 1, 8)
  const moment1 = a.take(layout.paddedCount)
  const moment2 = a.take(layout.paddedCount)
  const partials = a.take(Math.ceil(layout.paddedCount / NORM_BLOCK), 8)
  const widths = { d, attentionWidth, keyWidth, qkvWidth }
  const trainFrom = a.size
  const train = planTraining(a, s, c, layout, widths)
  const trainTo = a.size
  return {
    shape: s,
    capacity: c,
    layout,
    qkvWidth,
    attentionWidth,
    keyWidth,
    control,
    /** An i32 that is odd while the sums change. */
    sumsSequence,
    ropeTable,
    weights,
    forwardPanels,
    backwardPanels,
    /** Of one micro-step; zero between jobs. */
    gradients,
    /** i64 quanta of the accumulated gradient, without padding; last the sum of the micro-steps' largest magnitudes. */
    sums,
    moment1,
    moment2,
    partials,
    train,
    /** Bytes [from, to) of everything in `train`. */
    trainRegion: [trainFrom, trainTo] as const,
    sample: planSampling(a, s, c, layout, widths),
    threadScratch: planScratch(a, s, c),
    bytes: a.size,
  }
}

interface Widths {
  readonly d: number
  readonly attentionWidth: number
  readonly keyWidth: number
  readonly qkvWidth: number
}

function planTraining(a: Arena, s: ModelShape, c: Capacity, layout: ParameterLayout, w: Widths) {
  const t = Math.ceil(c.maxTrainTokens / ROW_BLOCK) * ROW_BLOCK
  const blocks = Math.ceil(t / blockPositions(s))
  const tiles = t / TILE
  const perLayer = Array.from({ length: s.layers }, () => ({
    /** Residual stream at the layer's entry and at its middle, [T, d]. */
    entry: a.take(t * w.d),
    middle: a.take(t * w.d),
    /** Rotated and scaled q, rotated k, v: [T, qkvWidth]. */
    qkv: a.take(t * w.qkvWidth),
    attention: a.take(t * w.attentionWidth),
    gateUp: a.take(t * 2 * s.ffSize),
    lse: a.take(t * s.heads),
  }))
  return {
    tokens: a.take(t),
    positions: a.take(t),
    ends: a.take(t),
    /** First entry and length of each block's tile list. */
    listStart: a.take(blocks),
    listLength: a.take(blocks),
    lists: a.take((blocks * (tiles + 1)) / 2 + blocks * 8),
    layers: perLayer,
    exit: a.take(t * w.d),
    keyTiles: [a.take(t * w.keyWidth), a.take(t * w.keyWidth)] as const,
    /** Values (forward) or keys (backward) as contiguous rows of each head: rows a power of two apart would share cache sets. */
    headRows: [a.take(t * w.keyWidth), a.take(t * w.keyWidth)] as const,
    valueTiles: a.take(t * w.keyWidth),
    dKeys: a.take(t * w.keyWidth),
    dValues: a.take(t * w.keyWidth),
    normed: a.take(t * w.d),
    inverse: a.take(t),
    activation: a.take(t * s.ffSize),
    dStream: a.take(t * w.d),
    dNormed: a.take(t * w.d),
    dGateUp: a.take(t * 2 * s.ffSize),
    dAttention: a.take(t * w.attentionWidth),
    delta: a.take(t * s.heads),
    dQkv: a.take(t * w.qkvWidth),
    targetRows: a.take(t * 2),
    targetIds: a.take(t * 2),
    targetWeights: a.take(t * 2),
    targetAdvantages: a.take(t * 2),
    targetBehavior: a.take(t * 2),
    targetLogprobs: a.take(t * 2),
    targetLosses: a.take(t * 2, 8),
    targetEntropies: a.take(t * 2, 8),
    /** 0 trained, 1 clipped, 2 masked. */
    targetFates: a.take(t * 2),
    maxTargets: t * 2,
    chunkHidden: a.take(TARGET_CHUNK * w.d),
    chunkNormed: a.take(TARGET_CHUNK * w.d),
    chunkInverse: a.take(TARGET_CHUNK),
    chunkLogits: a.take(TARGET_CHUNK * layout.paddedVocab),
    chunkDNormed: a.take(TARGET_CHUNK * w.d),
    chunkDHidden: a.take(TARGET_CHUNK * w.d),
  }
}

function planSampling(a: Arena, s: ModelShape, c: Capacity, layout: ParameterLayout, w: Widths) {
  const pagesPerSlot = Math.ceil(c.maxContext / TILE)
  const pages = pagesPerSlot * c.slots
  const m = c.stepRows
  return {
    tokens: a.take(m),
    positions: a.take(m),
    slots: a.take(m),
    /** Runs of consecutive positions of one slot: first row, rows. */
    segmentRow: a.take(m),
    segmentRows: a.take(m),
    outputRows: a.take(m),
    /** [slots][pagesPerSlot] tile lists: page * 2 of each tile of a running sequence. */
    pageTables: a.take(pagesPerSlot * c.slots),
    pagesPerSlot,
    pages,
    stream: a.take(m * w.d),
    normed: a.take(m * w.d),
    inverse: a.take(m),
    qkv: a.take(m * w.qkvWidth),
    attention: a.take(m * w.attentionWidth),
    gateUp: a.take(m * 2 * s.ffSize),
    activation: a.take(m * s.ffSize),
    logits: a.take(c.slots * layout.paddedVocab),
    drawScratch: a.take(layout.paddedVocab),
    /** [layers][kvHeads] of key pages, then of value pages; a page is 8 positions of one head. */
    headBytes: pages * TILE * s.headDim * 4,
    cache: a.take(pages * TILE * s.headDim * s.kvHeads * s.layers * 2),
  }
}

function planScratch(a: Arena, s: ModelShape, c: Capacity): readonly number[] {
  const context = Math.ceil(Math.max(c.maxContext, c.maxTrainTokens) / ROW_BLOCK) * ROW_BLOCK
  const rows = blockPositions(s) * (s.heads / s.kvHeads)
  const attention = rows * (3 * s.headDim + 16) + 2 * rows * context
  const product = 256 * (Math.max(s.ffSize, s.hiddenSize, s.heads * s.headDim) + 4) + 1024
  const rowBlock = ROW_BLOCK * (s.hiddenSize + s.ffSize + 1)
  return Array.from({ length: c.threads }, () => a.take(Math.max(attention, product, rowBlock)))
}
