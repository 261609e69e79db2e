/**
 * @file What a cell does with each verb, without HTTP: fencing, modes, order, keys.
 *
 * Order: training verbs run one at a time in the order of arrival. Reads (weights, gradients) skip that
 * queue and only exclude engine calls, so two cells that read from each other never wait in a circle.
 */
import { createHash } from 'node:crypto'
import { GyreError } from '../core/errors.ts'
import type { CellId } from '../core/ids.ts'
import { CELL_PROTOCOL_VERSION } from '../ports/cell.ts'
import type { CellEngine, CellHealth, CellHello } from '../ports/cell.ts'
import type { GenerateRequest } from '../ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import { Admission } from './admission.ts'
import type { AdmittedGeneration } from './admission.ts'
import type { Deadline } from './deadline.ts'
import { Serial, WorkQueue } from './work-queue.ts'

/** Who calls, how long it waits. */
export interface Caller {
  readonly epoch: number
  readonly deadline: Deadline
}

/** Reads a tensor of another cell. */
export interface PeerReader {
  (address: string, what: 'weights' | 'gradients', deadline: Deadline): Promise<Float32Array>
}

export interface HostOptions {
  readonly engine: CellEngine
  readonly cellId: CellId
  /** Executions it is meant to serve at once. [executions] */
  readonly slots: number
  readonly readPeer: PeerReader
}

const GRADIENTS = 'forward-backward'
const STEPS = 'optimizer-step'

export class CellHost {
  readonly engine: CellEngine
  readonly #cellId: CellId
  readonly #slots: number
  readonly #readPeer: PeerReader
  readonly #admission = new Admission()
  readonly #queue = new WorkQueue()
  readonly #engineLock = new Serial()
  #epoch = 0

  constructor(options: HostOptions) {
    this.engine = options.engine
    this.#cellId = options.cellId
    this.#slots = options.slots
    this.#readPeer = options.readPeer
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
   * Admits a generation. It does not raise the epoch, which only its owner's commands do.
   * @throws GyreError E_CELL_FENCED, E_CELL_NOT_ADMITTING
   */
  generate(caller: Caller, request: GenerateRequest, signal: AbortSignal): AdmittedGeneration {
    if (caller.epoch < this.#epoch) throw this.#fenced(caller.epoch)
    return this.#admission.run((inner) => this.engine.generate(request, inner), signal, caller.deadline)
  }

  /** Acts at once, also while training verbs are queued. */
  async enterTraining(caller: Caller): Promise<void> {
    this.#fence(caller.epoch)
    await this.#admission.drain(caller.deadline)
  }

  async enterRollout(caller: Caller): Promise<void> {
    await this.#inOrder(caller, async () => this.#admission.open())
  }

  async pullWeights(caller: Caller, from: string, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, async () => {
      const weights = await this.#readPeer(from, 'weights', caller.deadline)
      this.#checkSize('weights', from, weights)
      this.#fence(caller.epoch)
      await this.#engineLock.run(() => this.engine.importWeights(weights, policyVersion))
      this.#queue.forget(STEPS)
    })
  }

  async setPolicyVersion(caller: Caller, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, () => this.#engineLock.run(() => this.engine.setPolicyVersion(policyVersion)))
  }

  async zeroGradients(caller: Caller): Promise<void> {
    await this.#inOrder(caller, async () => {
      this.#requireTraining('zero-gradients')
      await this.#engineLock.run(() => this.engine.zeroGradients())
      this.#queue.forget(GRADIENTS)
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
      return this.#engineLock.run(() => this.engine.forwardBackward(step.batch, step.objective))
    })
  }

  /** Reads every gradient before it adds the first, so a lost cell leaves the accumulator as it was. */
  async reduceGradients(caller: Caller, from: readonly string[]): Promise<void> {
    await this.#inOrder(caller, async () => {
      this.#requireTraining('reduce-gradients')
      const read = from.map((address) => this.#readPeer(address, 'gradients', caller.deadline))
      const gradients = await Promise.all(read)
      gradients.forEach((g, i) => this.#checkSize('gradients', from[i] ?? '', g))
      this.#fence(caller.epoch)
      for (const gradient of gradients) await this.#engineLock.run(() => this.engine.addGradients(gradient))
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
      return this.#engineLock.run(() => this.engine.optimizerStep(params))
    })
  }

  async saveCheckpoint(caller: Caller, folder: string): Promise<void> {
    await this.#inOrder(caller, () => this.#engineLock.run(() => this.engine.save(folder)))
  }

  async loadCheckpoint(caller: Caller, folder: string, policyVersion: number): Promise<void> {
    await this.#inOrder(caller, async () => {
      await this.#engineLock.run(async () => {
        await this.engine.load(folder, policyVersion)
        // Their keys are forgotten, so their effect must be gone.
        await this.engine.zeroGradients()
      })
      this.#queue.forget(GRADIENTS)
      this.#queue.forget(STEPS)
    })
  }

  async weights(): Promise<{ readonly data: Float32Array; readonly policyVersion: number }> {
    return this.#engineLock.run(async () => ({
      data: await this.engine.exportWeights(),
      policyVersion: this.engine.policyVersion,
    }))
  }

  async gradients(): Promise<Float32Array> {
    return this.#engineLock.run(() => this.engine.exportGradients())
  }

  /** Cancels what runs. The engine stays open: its owner closes it. */
  async close(deadline: Deadline): Promise<void> {
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

  #checkSize(what: string, from: string, data: Float32Array): void {
    if (data.length === this.engine.parameterCount) return
    throw new GyreError(
      `the ${what} of ${from} have ${data.length} numbers, this cell has ${this.engine.parameterCount} parameters`,
      { boundary: 'transfer', code: 'E_TRANSFER_LAYOUT' },
    )
  }
}

const digestOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('base64')
