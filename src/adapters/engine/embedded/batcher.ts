/** @file Continuous batching: many generations advance together, one token or one chunk of a prompt a step. */
import { chooseToken, drawAt } from '../../../kernels/choose.ts'
import { runJob } from '../../../kernels/job.ts'
import type { Machine } from '../../../kernels/machine.ts'
import { clearPages } from '../../../kernels/pages.ts'
import type { SamplingParams } from '../../../ports/engine.ts'
import { Handover } from './handover.ts'
import type { TokenChunk } from './messages.ts'
import { PagePool } from './page-pool.ts'
import { type Prefix, type Resident, Residents } from './residents.ts'

interface Waiting {
  readonly id: number
  readonly executionId: string
  readonly promptIds: Int32Array
  readonly sampling: SamplingParams
}

interface Generation {
  readonly id: number
  /** Place of its page table and of its logits. */
  readonly slot: number
  readonly resident: Resident
  readonly sampling: SamplingParams
  readonly stopIds: ReadonlySet<number>
  readonly promptLength: number
  readonly cachedTokens: number
}

/** Rows of one generation in the step being built. */
interface Segment {
  readonly generation: Generation
  readonly rows: number
}

/** A request waits for another's prefill when that saves at least this much. [tokens] */
const WORTH_WAITING = 32

/** Tokens whose cache is not computed. */
function left({ resident }: Generation): number {
  return resident.length - resident.computed
}

export class Batcher {
  readonly #m: Machine
  readonly #residents: Residents
  readonly handover: Handover
  readonly #emit: (chunk: TokenChunk) => void
  /** In order of admission. */
  #running: Generation[] = []
  #waiting: Waiting[] = []
  policyVersion: number

  constructor(m: Machine, policyVersion: number, emit: (chunk: TokenChunk) => void) {
    this.#m = m
    const pool = new PagePool(m.plan.sample.pages)
    this.#residents = new Residents(m, pool, () => this.handover.giveWay())
    this.handover = new Handover(m, pool, this.#residents)
    this.policyVersion = policyVersion
    this.#emit = emit
  }

  get isBusy(): boolean {
    return this.#waiting.length > 0 || this.#running.length > 0
  }

  add(request: Waiting): void {
    this.#waiting.push(request)
  }

  cancel(id: number): void {
    this.#waiting = this.#waiting.filter((w) => w.id !== id)
    for (const g of this.#running) if (g.id === id) this.#retire(g)
  }

  /** Forgets every cache; running generations compute theirs again and go on under the new weights. */
  dropCaches(): void {
    this.#residents.drop()
    this.handover.drop()
  }

  /** Advances every generation by one token or one chunk of its prompt. */
  step(): void {
    this.#admit()
    const segments = this.#schedule()
    if (segments.length === 0) return
    const outputs = this.#fill(segments)
    const rows = segments.reduce((sum, s) => sum + s.rows, 0)
    runJob(this.#m, { kind: 'sample', rows, segments: segments.length, outputs: outputs.length })
    for (const { generation, rows: done } of segments) generation.resident.computed += done
    outputs.forEach((generation, i) => this.#extend(generation, i))
  }

  #retire(g: Generation): void {
    g.resident.isRunning = false
    this.#running = this.#running.filter((other) => other !== g)
  }

  /** First come, first served, but for requests that can share what a running prefill is about to compute. */
  #admit(): void {
    const held: Waiting[] = []
    const { slots } = this.#m.plan.capacity
    for (const request of this.#waiting) {
      const prefix = this.#running.length < slots ? this.#residents.find(request.promptIds) : undefined
      if (prefix === undefined || prefix.soon - prefix.computed >= WORTH_WAITING) held.push(request)
      else this.#start(request, prefix)
    }
    this.#waiting = held
  }

  #start({ id, executionId, promptIds, sampling }: Waiting, prefix: Prefix): void {
    const taken = new Set(this.#running.map((g) => g.slot))
    let slot = 0
    while (taken.has(slot)) slot++
    const resident = this.#residents.start(executionId, promptIds, prefix)
    const stopIds = new Set(sampling.stopTokenIds)
    const lengths = { promptLength: promptIds.length, cachedTokens: resident.computed }
    this.#running.push({ id, slot, resident, sampling, stopIds, ...lengths })
  }

  /** Single tokens first, then chunks of prompts in order of admission, up to the rows of a step. */
  #schedule(): readonly Segment[] {
    const segments: Segment[] = this.#running
      .filter((g) => left(g) === 1)
      .map((generation) => ({ generation, rows: 1 }))
    let room = this.#m.plan.capacity.stepRows - segments.length
    for (const generation of this.#running) {
      const rows = Math.min(room, left(generation))
      if (left(generation) === 1 || rows <= 0) continue
      segments.push({ generation, rows })
      room -= rows
    }
    return segments
  }

  /** Writes the step's tables. @returns generations whose next token is due, in the order of their logits. */
  #fill(segments: readonly Segment[]): readonly Generation[] {
    const { i32, plan } = this.#m
    const { sample } = plan
    const outputs: Generation[] = []
    let row = 0
    segments.forEach(({ generation, rows }, s) => {
      const { resident, slot } = generation
      this.#residents.reserve(resident, resident.computed + rows)
      const table = sample.pageTables / 4 + slot * sample.pagesPerSlot
      resident.pages.forEach((page, i) => (i32[table + i] = page * 2))
      i32[sample.segmentRow / 4 + s] = row
      i32[sample.segmentRows / 4 + s] = rows
      for (let i = 0; i < rows; i++, row++) {
        i32[sample.tokens / 4 + row] = resident.tokens[resident.computed + i] ?? 0
        i32[sample.positions / 4 + row] = resident.computed + i
        i32[sample.slots / 4 + row] = slot
      }
      if (resident.computed + rows < resident.length) return
      i32[sample.outputRows / 4 + outputs.length] = row - 1
      outputs.push(generation)
    })
    return outputs
  }

  /** Samples the next token of a generation from row `output` of the logits. */
  #extend(g: Generation, output: number): void {
    const { k, plan, f32 } = this.#m
    const { id, resident, sampling } = g
    const row = plan.sample.logits + output * plan.layout.paddedVocab * 4
    const lse = k.logSumExp(row, plan.shape.vocabSize, plan.layout.paddedVocab)
    if (!Number.isFinite(lse)) {
      this.#fail(g)
      return
    }
    const token = chooseToken(this.#m, row, sampling, drawAt(sampling.seed, resident.length))
    const logprob = Math.fround((f32[row / 4 + token] ?? NaN) - lse)
    resident.tokens[resident.length++] = token
    const chunk: TokenChunk = { id, tokenIds: [token], logprobs: [logprob], policyVersions: [this.policyVersion] }
    const made = resident.length - g.promptLength
    const isFull = made >= sampling.maxTokens || resident.length >= plan.capacity.maxContext
    if (g.stopIds.has(token) || isFull) {
      chunk.end = { finishReason: g.stopIds.has(token) ? 'stop' : 'length', cachedTokens: g.cachedTokens }
      this.#retire(g)
    }
    this.#emit(chunk)
  }

  #fail(g: Generation): void {
    this.#retire(g)
    this.dropCaches()
    clearPages(this.#m)
    const message = `the logits at position ${g.resident.length} are not finite: the weights have diverged`
    const error = { boundary: 'engine', code: 'E_ENGINE_NONFINITE', message } as const
    this.#emit({ id: g.id, tokenIds: [], logprobs: [], policyVersions: [], error })
  }
}
