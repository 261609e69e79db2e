/**
 * @file What a cell does with each verb, without HTTP: fencing, modes, order, keys.
 *
 * Order: training verbs run one at a time in the order of arrival. Reads (weights, gradients) skip that
 * queue, so two cells that read from each other never wait in a circle, and do not wait for a micro-step that
 * runs, so a cell that joins begins at once.
 */
import { createHash } from 'node:crypto'
import { GyreError } from '../core/errors.ts'
import type { CellId, ExecutionId } from '../core/ids.ts'
import { CELL_PROTOCOL_VERSION } from '../ports/cell.ts'
import type {
  CellEngine,
  CellHealth,
  CellHello,
  FetchedKv,
  HeldGradients,
  HeldResult,
  PinnedKv,
} from '../ports/cell.ts'
import type { GenerateEvent, GenerateRequest } from '../ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import type { GradientSums } from '../training/gradient-sums.ts'
import { Admission } from './admission.ts'
import type { AdmittedGeneration } from './admission.ts'
import type { Deadline } from './deadline.ts'
import { KvHandover } from './kv-handover.ts'
import type { KvPeer } from './kv-handover.ts'
import { Serial, WorkQueue } from './work-queue.ts'

/** Who calls, how long it waits. */
export interface Caller {
  readonly epoch: number
  readonly deadline: Deadline
}

/** Reads from other cells. */
export interface PeerReader {
  weights(address: string, deadline: Deadline): Promise<Float32Array>
  gradients(address: string, deadline: Deadline): Promise<GradientSums>
  /** Its owner closes it. */
  kv(address: string): KvPeer
}

export interface HostOptions {
  readonly engine: CellEngine
  readonly cellId: CellId
  /** Executions it is meant to serve at once. [executions] */
  readonly slots: number
  readonly peers: PeerReader
}

const GRADIENTS = 'forward-backward'
const STEPS = 'optimizer-step'
const HELD = 'hold-gradient'

export class CellHost {
  readonly engine: CellEngine
  readonly #cellId: CellId
  readonly #slots: number
  readonly #peers: PeerReader
  readonly #admission = new Admission()
  readonly #queue = new WorkQueue()
  /** Held while weights or their version change, and while they are read: a reader gets the pair. */
  readonly #weightsLock = new Serial()
  /** Its offers are for other cells; its commands come through the host. */
  readonly kv: KvHandover
  #epoch = 0

  constructor(options: HostOptions) {
    this.engine = options.engine
    this.#cellId = options.cellId
    this.#slots = options.slots
    this.#peers = options.peers
    this.kv = new KvHandover(options.engine, (address) => options.peers.kv(address))
  }

  hello(): CellHello {
    const { parameterCount, maxContext, vocabSize, backend, policyVersion } = this.engine
    return {
      protocolVersion: CELL_PROTOCOL_VERSION,
      cellId: this.#cellId,
      slots: this.#slots,
      parameterCount,
      maxContext,
      vocabSize,
      backend,
      kv: this.engine.kv === undefined ? 'none' : 'blocks',
      policyVersion,
      epoch: this.#epoch,
    }
  }

  health(): CellHealth {
    return {
      protocolVersion: CELL_PROTOCOL_VERSION,
      cellId: this.#cellId,
      mode: this.#admission.mode,
      epoch: this.#epoch,
      policyVersion: this.engine.policyVersion,
      running: this.#admission.running,
    }
  }

  /**
   * Admits a generation, which waits for cached blocks of its execution on their way. It does not raise the epoch, which only its owner's commands do.
   * @throws GyreError E_CELL_FENCED, E_CELL_NOT_ADMITTING
   */
  generate(caller: Caller, request: GenerateRequest, signal: AbortSignal): AdmittedGeneration {
    if (caller.epoch < this.#epoch) throw this.#fenced(caller.epoch)
    return this.#admission.run((inner) => this.#generate(request, inner), signal, caller.deadline)
  }

  #generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    const arrival = this.kv.arrivalOf(request.executionId)
    return arrival === undefined ? this.engine.generate(request, signal) : this.#generateAfter(arrival, request, signal)
  }

  async *#generateAfter(
    arrival: (signal: AbortSignal) => Promise<void>,
    request: GenerateRequest,
    signal: AbortSignal,
  ): AsyncGenerator<GenerateEvent> {
    await arrival(signal)
    yield* this.engine.generate(request, signal)
  }

  async pinKv(caller: Caller, executionIds: readonly ExecutionId[], ttlMs: number): Promise<readonly PinnedKv[]> {
    this.#fence(caller.epoch)
    return caller.deadline.wait(this.kv.pin(executionIds, ttlMs))
  }

  async fetchKv(caller: Caller, from: string, executionIds: readonly ExecutionId[]): Promise<FetchedKv> {
    this.#fence(caller.epoch)
    return this.kv.fetch(from, executionIds, caller.deadline, () => this.#fence(caller.epoch))
  }

  async releaseKv(caller: Caller): Promise<void> {
    this.#fence(caller.epoch)
    await caller.deadline.wait(this.kv.release())
  }

  /** Acts at once, also while training verbs are queued. */
  async enterTraining(caller: Caller): Promise<void> {
    this.#fence(caller.epoch)
    this.kv.cancelFetches()
    await this.#admission.drain(caller.deadline)
    await caller.deadline.wait(this.kv.release())
  }

  async enterRollout(caller: Caller): Promise<void> {
    await this.#inOrder(caller, async () => this.#admission.open())
  }

  async pullWeights(caller: Caller, from: string, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, async () => {
      const weights = await this.#peers.weights(from, caller.deadline)
      this.#checkSize('weights', from, weights.length)
      this.#fence(caller.epoch)
      await this.#weightsLock.run(() => this.engine.importWeights(weights, policyVersion))
      await this.kv.release()
      this.#queue.forget(STEPS)
      this.#queue.forget(HELD)
    })
  }

  async setPolicyVersion(caller: Caller, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, () => this.#weightsLock.run(() => this.engine.setPolicyVersion(policyVersion)))
  }

  async zeroGradients(caller: Caller): Promise<void> {
    await this.#inOrder(caller, async () => {
      this.#requireTraining('zero-gradients')
      await this.engine.zeroGradients()
      this.#queue.forget(GRADIENTS)
      this.#queue.forget(HELD)
    })
  }

  /** @param bytes the request as it came, to tell a repetition from a reused key. */
  async forwardBackward(
    caller: Caller,
    key: string,
    bytes: Uint8Array,
    step: { readonly batch: MicroBatch; readonly objective: Objective },
  ): Promise<ForwardBackwardResult> {
    this.#fence(caller.epoch)
    return this.#queue.runOnce(GRADIENTS, key, digestOf(bytes), caller.deadline, async () => {
      this.#fence(caller.epoch)
      this.#requireTraining('forward-backward')
      return this.engine.forwardBackward(step.batch, step.objective)
    })
  }

  /** As forwardBackward, but the gradient is kept aside under the key. @throws GyreError as HeldGradients says. */
  async holdGradient(
    caller: Caller,
    key: string,
    bytes: Uint8Array,
    step: { readonly batch: MicroBatch; readonly objective: Objective },
  ): Promise<HeldResult> {
    this.#fence(caller.epoch)
    return this.#queue.runOnce(HELD, key, digestOf(bytes), caller.deadline, async () => {
      this.#fence(caller.epoch)
      this.#requireTraining('hold-gradient')
      return this.#held().hold(key, step.batch, step.objective)
    })
  }

  /** Counts as a micro-step of its own key. */
  async applyHeld(caller: Caller, key: string, bytes: Uint8Array, held: string, scale: number): Promise<void> {
    this.#fence(caller.epoch)
    await this.#queue.runOnce(GRADIENTS, key, digestOf(bytes), caller.deadline, async () => {
      this.#fence(caller.epoch)
      this.#requireTraining('apply-held')
      await this.#held().apply(held, scale)
      this.#queue.forget(HELD, [held])
    })
  }

  async dropHeld(caller: Caller, held?: readonly string[]): Promise<void> {
    await this.#inOrder(caller, async () => {
      await this.engine.held?.drop(held)
      this.#queue.forget(HELD, held)
    })
  }

  #held(): HeldGradients {
    if (this.engine.held !== undefined) return this.engine.held
    throw new GyreError(`an engine of ${this.engine.backend} computes gradients only with their advantage`, {
      boundary: 'trainer',
      code: 'E_TRAINER_NOT_HOLDABLE',
    })
  }

  /** Reads every gradient before it adds them, so a lost cell leaves the accumulator as it was. */
  async reduceGradients(caller: Caller, from: readonly string[]): Promise<void> {
    await this.#inOrder(caller, async () => {
      this.#requireTraining('reduce-gradients')
      const gradients = await Promise.all(from.map((address) => this.#peers.gradients(address, caller.deadline)))
      gradients.forEach((sums, i) => this.#checkSize('gradients', from[i] ?? '', sums.length - 1))
      this.#fence(caller.epoch)
      await this.engine.addGradients(gradients)
    })
  }

  async optimizerStep(
    caller: Caller,
    key: string,
    bytes: Uint8Array,
    params: OptimizerParams,
  ): Promise<{ readonly gradientNorm: number }> {
    this.#fence(caller.epoch)
    return this.#queue.runOnce(STEPS, key, digestOf(bytes), caller.deadline, async () => {
      this.#fence(caller.epoch)
      this.#requireTraining('optimizer-step')
      const result = await this.#weightsLock.run(() => this.engine.optimizerStep(params))
      await this.kv.release()
      this.#queue.forget(HELD)
      return result
    })
  }

  async saveCheckpoint(caller: Caller, folder: string): Promise<void> {
    await this.#inOrder(caller, () => this.engine.save(folder))
  }

  async loadCheckpoint(caller: Caller, folder: string, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, async () => {
      await this.#weightsLock.run(async () => {
        await this.engine.load(folder, policyVersion)
        // Their keys are forgotten, so their effect must be gone.
        await this.engine.zeroGradients()
      })
      await this.kv.release()
      this.#queue.forget(GRADIENTS)
      this.#queue.forget(STEPS)
      this.#queue.forget(HELD)
    })
  }

  async weights(): Promise<{ readonly data: Float32Array; readonly policyVersion: number }> {
    return this.#weightsLock.run(async () => ({
      data: await this.engine.exportWeights(),
      policyVersion: this.engine.policyVersion,
    }))
  }

  async gradients(): Promise<GradientSums> {
    return this.engine.exportGradients()
  }

  /** Cancels what runs. The engine stays open: its owner closes it. */
  async close(deadline: Deadline): Promise<void> {
    this.kv.cancelFetches()
    await this.#admission.drain(deadline)
  }

  /** Fences at arrival and again when the turn comes: a queued command of an older epoch is not begun. */
  async #inOrder(caller: Caller, work: () => Promise<void>): Promise<void> {
    this.#fence(caller.epoch)
    await this.#queue.run(caller.deadline, async () => {
      this.#fence(caller.epoch)
      await work()
    })
  }

  #fence(epoch: number): void {
    if (epoch < this.#epoch) throw this.#fenced(epoch)
    this.#epoch = epoch
  }

  #fenced(epoch: number): GyreError {
    return new GyreError(`the command carries epoch ${epoch}, but the cell has seen ${this.#epoch}`, {
      boundary: 'cell',
      code: 'E_CELL_FENCED',
      details: { epoch, seen: this.#epoch },
    })
  }

  #requireTraining(verb: string): void {
    if (this.#admission.mode === 'training') return
    throw new GyreError(`${verb} needs a cell in training, and this one is in rollout: call enterTraining first`, {
      boundary: 'cell',
      code: 'E_CELL_NOT_TRAINING',
    })
  }

  #checkSize(what: string, from: string, count: number): void {
    if (count === this.engine.parameterCount) return
    throw new GyreError(
      `the ${what} of ${from} have ${count} numbers, this cell has ${this.engine.parameterCount} parameters`,
      { boundary: 'transfer', code: 'E_TRANSFER_LAYOUT' },
    )
  }
}

const digestOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('base64')
