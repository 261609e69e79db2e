/**
 * @file Continuous batching: many generations over a fixed set of slots, each slot with a resident key-value cache.
 *
 * A slot keeps the tokens whose cache it holds after its generation ends, so that a later prompt with the same
 * beginning need not compute it again. Invariant: `computed` positions of a slot's cache belong to its tokens
 * under the present weights.
 */
import type { SamplingParams } from '../../../ports/engine.ts'
import { chooseToken, drawAt } from '../../../kernels/choose.ts'
import { runJob } from '../../../kernels/job.ts'
import type { Machine } from '../../../kernels/machine.ts'
import { copyPrefix } from '../../../kernels/sample-step.ts'
import type { TokenChunk } from './messages.ts'

interface Generation {
  readonly id: number
  readonly sampling: SamplingParams
  readonly stopIds: ReadonlySet<number>
  readonly promptLength: number
  readonly cachedTokens: number
}

interface Slot {
  readonly index: number
  /** [maxContext]; the first `length` are known, the first `computed` are in the cache. */
  readonly tokens: Int32Array
  length: number
  computed: number
  generation: Generation | undefined
  /** Admission order of the last generation: the smallest idle one is reused first. */
  lastUse: number
}

interface Waiting {
  readonly id: number
  readonly promptIds: Int32Array
  readonly sampling: SamplingParams
}

/** Rows of one slot in the step being built. */
interface Segment {
  readonly slot: Slot
  readonly rows: number
}

/** A request waits for another's prefill when that saves at least this much. [tokens] */
const WORTH_WAITING = 32

export class Batcher {
  readonly #m: Machine
  readonly #slots: readonly Slot[]
  readonly #emit: (chunk: TokenChunk) => void
  #waiting: Waiting[] = []
  #uses = 0
  policyVersion: number

  constructor(m: Machine, policyVersion: number, emit: (chunk: TokenChunk) => void) {
    this.#m = m
    this.policyVersion = policyVersion
    this.#emit = emit
    const { slots, maxContext } = m.plan.capacity
    this.#slots = Array.from({ length: slots }, (_, index) => ({
      index,
      tokens: new Int32Array(maxContext),
      length: 0,
      computed: 0,
      generation: undefined,
      lastUse: 0,
    }))
    const { fullTiles } = m.plan.sample
    for (let t = 0; t < Math.ceil(maxContext / 8); t++) m.i32[fullTiles / 4 + t] = t * 2
  }

  get isBusy(): boolean {
    return this.#waiting.length > 0 || this.#slots.some((s) => s.generation !== undefined)
  }

  add(request: Waiting): void {
    this.#waiting.push(request)
  }

  cancel(id: number): void {
    this.#waiting = this.#waiting.filter((w) => w.id !== id)
    for (const slot of this.#slots) if (slot.generation?.id === id) slot.generation = undefined
  }

  /** Forgets every cache; running generations compute theirs again and go on under the new weights. */
  dropCaches(): void {
    for (const slot of this.#slots) slot.computed = 0
  }

  /** Advances every generation by one token or one chunk of its prompt. */
  step(): void {
    this.#admit()
    const segments = this.#schedule()
    if (segments.length === 0) return
    const outputs = this.#fill(segments)
    const rows = segments.reduce((sum, s) => sum + s.rows, 0)
    runJob(this.#m, { kind: 'sample', rows, segments: segments.length, outputs: outputs.length })
    for (const { slot, rows: done } of segments) slot.computed += done
    outputs.forEach((slot, i) => this.#extend(slot, i))
  }

  /** First come, first served, but for requests that can copy what a running prefill is about to compute. */
  #admit(): void {
    const held: Waiting[] = []
    let idle = this.#slots.filter((s) => s.generation === undefined).length
    for (const request of this.#waiting) {
      const plan = idle > 0 ? this.#findPrefix(request.promptIds) : 'later'
      if (plan === 'later') held.push(request)
      else {
        this.#place(request, plan)
        idle -= 1
      }
    }
    this.#waiting = held
  }

  /** Length of the common beginning with each slot's cache, or `later` when a prefill will soon have much more. */
  #findPrefix(promptIds: Int32Array): readonly number[] | 'later' {
    const limit = promptIds.length - 1
    const known = this.#slots.map((s) => commonLength(s.tokens, promptIds, Math.min(s.length, limit)))
    const shared = this.#slots.map((s, i) => Math.min(known[i] ?? 0, s.computed))
    const longest = Math.max(...shared)
    const soon = this.#slots.some((s, i) => s.generation !== undefined && (known[i] ?? 0) - longest >= WORTH_WAITING)
    return soon ? 'later' : shared
  }

  /**
   * The slot with the longest common beginning is used in place when it is idle and nothing of it would be lost;
   * otherwise its cache is copied to the idle slot that was used longest ago.
   */
  #place({ id, promptIds, sampling }: Waiting, shared: readonly number[]): void {
    const longest = Math.max(...shared)
    const idle = this.#slots.filter((s) => s.generation === undefined)
    const inPlace = idle.find((s) => shared[s.index] === longest && longest > 0 && s.computed - longest <= 1)
    const oldest = idle.reduce((a, b) => (b.lastUse < a.lastUse ? b : a))
    const slot = inPlace ?? oldest
    if ((shared[slot.index] ?? 0) < longest) copyPrefix(this.#m, shared.indexOf(longest), slot.index, longest)
    slot.tokens.set(promptIds)
    slot.length = promptIds.length
    slot.computed = longest
    slot.lastUse = ++this.#uses
    const stopIds = new Set(sampling.stopTokenIds)
    slot.generation = { id, sampling, stopIds, promptLength: promptIds.length, cachedTokens: longest }
  }

  /** Single tokens first, then chunks of prompts in order of admission, up to the rows of a step. */
  #schedule(): readonly Segment[] {
    const active = this.#slots.filter((s) => s.generation !== undefined).sort((a, b) => a.lastUse - b.lastUse)
    const segments: Segment[] = active.filter((s) => s.length - s.computed === 1).map((slot) => ({ slot, rows: 1 }))
    let room = this.#m.plan.capacity.stepRows - segments.length
    for (const slot of active) {
      const rows = Math.min(room, slot.length - slot.computed)
      if (slot.length - slot.computed === 1 || rows <= 0) continue
      segments.push({ slot, rows })
      room -= rows
    }
    return segments
  }

  /** Writes the step's tables. @returns slots whose next token is due, in the order of their logits. */
  #fill(segments: readonly Segment[]): readonly Slot[] {
    const { i32, plan } = this.#m
    const { sample } = plan
    const outputs: Slot[] = []
    let row = 0
    segments.forEach(({ slot, rows }, s) => {
      i32[sample.segmentRow / 4 + s] = row
      i32[sample.segmentRows / 4 + s] = rows
      for (let i = 0; i < rows; i++, row++) {
        i32[sample.tokens / 4 + row] = slot.tokens[slot.computed + i] ?? 0
        i32[sample.positions / 4 + row] = slot.computed + i
        i32[sample.slots / 4 + row] = slot.index
      }
      if (slot.computed + rows < slot.length) return
      i32[sample.outputRows / 4 + outputs.length] = row - 1
      outputs.push(slot)
    })
    return outputs
  }

  /** Samples the next token of a slot from row `output` of the logits. */
  #extend(slot: Slot, output: number): void {
    const { generation } = slot
    if (generation === undefined) return
    const { k, plan, f32 } = this.#m
    const { id, sampling, stopIds, promptLength, cachedTokens } = generation
    const row = plan.sample.logits + output * plan.layout.paddedVocab * 4
    const lse = k.logSumExp(row, plan.shape.vocabSize, plan.layout.paddedVocab)
    if (!Number.isFinite(lse)) {
      slot.generation = undefined
      slot.computed = 0
      this.#clearCache(slot)
      const error = {
        boundary: 'engine',
        code: 'E_ENGINE_NONFINITE',
        message: `the logits at position ${slot.length} are not finite: the weights have diverged`,
      } as const
      this.#emit({ id, tokenIds: [], logprobs: [], policyVersions: [], error })
      return
    }
    const token = chooseToken(this.#m, row, sampling, drawAt(sampling.seed, slot.length))
    const logprob = Math.fround((f32[row / 4 + token] ?? NaN) - lse)
    slot.tokens[slot.length++] = token
    const chunk: TokenChunk = {
      id,
      tokenIds: [token],
      logprobs: [logprob],
      policyVersions: [this.policyVersion],
    }
    const isFull = slot.length - promptLength >= sampling.maxTokens || slot.length >= plan.capacity.maxContext
    if (stopIds.has(token) || isFull) {
      chunk.end = { finishReason: stopIds.has(token) ? 'stop' : 'length', cachedTokens }
      slot.generation = undefined
    }
    this.#emit(chunk)
  }

  /** A value that is not a number would survive a weight of zero. */
  #clearCache(slot: Slot): void {
    const { sample } = this.#m.plan
    const at = (sample.cache + slot.index * sample.slotBytes) / 4
    this.#m.f32.fill(0, at, at + sample.slotBytes / 4)
  }
}

function commonLength(a: Int32Array, b: Int32Array, limit: number): number {
  let n = 0
  while (n < limit && a[n] === b[n]) n++
  return n
}
