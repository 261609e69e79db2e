/** @file A cell in another process, as a Cell of the run loop and an Engine of the gateway. */
import type { ZodType } from 'zod'
import { CellConnection } from '../../../cell/connection.ts'
import { Deadline } from '../../../cell/deadline.ts'
import { decodeEvent, encodeGenerate } from '../../../cell/generate-codec.ts'
import { CONTENT, fetchedSchema, healthSchema, helloSchema, pinnedSchema } from '../../../cell/protocol.ts'
import type { Verb } from '../../../cell/protocol.ts'
import { realFrom } from '../../../cell/reals.ts'
import { decodeHeldResult, decodeMicroResult, encodeMicroStep } from '../../../cell/training-codec.ts'
import { GyreError, hasCode } from '../../../core/errors.ts'
import { cellId, engineId, executionId } from '../../../core/ids.ts'
import type { CellId, EngineId, ExecutionId } from '../../../core/ids.ts'
import { CELL_PROTOCOL_VERSION } from '../../../ports/cell.ts'
import type { Cell, CellHealth, CellHello, FetchedKv, HeldResult, PinnedKv } from '../../../ports/cell.ts'
import type { GenerateEvent, GenerateRequest } from '../../../ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'

/** How long each kind of call may take. [ms] */
export interface CellDeadlines {
  /** hello, health, modes without generations, versions, zeroing. */
  readonly control: number
  /** enterTraining: until every generation has ended. */
  readonly drain: number
  readonly forwardBackward: number
  readonly optimizerStep: number
  /** Weights and gradients between cells. */
  readonly transfer: number
  readonly checkpoint: number
  /** Pinning, fetching and releasing cached blocks: worth less than computing them again when it takes long. */
  readonly handover: number
  /** One whole generation. */
  readonly generate: number
  /** Silence of a stream, heartbeats included, after which its cell counts as lost. */
  readonly silence: number
}

const DEFAULT_DEADLINES: CellDeadlines = {
  control: 30_000,
  drain: 60_000,
  forwardBackward: 600_000,
  optimizerStep: 120_000,
  transfer: 120_000,
  checkpoint: 120_000,
  handover: 10_000,
  generate: 4 * 3_600_000,
  silence: 30_000,
}

export interface ProcessCellOptions {
  readonly cellId: CellId
  /** Path of a Unix socket, or host:port. */
  readonly address: string
  readonly token: string
  readonly deadlines?: Partial<CellDeadlines>
}

export class ProcessCell implements Cell {
  readonly id: EngineId
  readonly cellId: CellId
  readonly address: string
  readonly #connection: CellConnection
  readonly #deadlines: CellDeadlines
  /** Highest epoch this side has used; generations carry it. */
  #epoch = 0

  constructor(options: ProcessCellOptions) {
    this.cellId = options.cellId
    this.id = engineId(options.cellId)
    this.address = options.address
    this.#connection = new CellConnection(options.address, options.token)
    this.#deadlines = { ...DEFAULT_DEADLINES, ...options.deadlines }
  }

  /** @throws GyreError E_CELL_PROTOCOL_VERSION when the cell speaks another version. */
  async hello(): Promise<CellHello> {
    const deadline = new Deadline('hello', this.#deadlines.control)
    const hello = this.#parse(helloSchema, 'hello', await this.#connection.json('hello', { deadline }))
    if (hello.protocolVersion !== CELL_PROTOCOL_VERSION) {
      throw new GyreError(
        `${this.cellId} speaks version ${hello.protocolVersion} of the cell protocol, this side ${CELL_PROTOCOL_VERSION}`,
        { boundary: 'cell', code: 'E_CELL_PROTOCOL_VERSION' },
      )
    }
    this.#epoch = Math.max(this.#epoch, hello.epoch)
    return { ...hello, cellId: cellId(hello.cellId) }
  }

  async health(deadlineMs = this.#deadlines.control): Promise<CellHealth> {
    const deadline = new Deadline('health', deadlineMs)
    return this.#parse(healthSchema, 'health', await this.#connection.json('health', { deadline }))
  }

  /**
   * @throws GyreError E_ENGINE_CANCELLED (by `signal`, or the cell leaving rollout), E_ENGINE_NOT_ADMITTING,
   * E_ENGINE_UNREACHABLE, all retryable; E_ENGINE_OVERLONG.
   */
  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    let hasEnded = false
    try {
      const call = {
        deadline: new Deadline('generate', this.#deadlines.generate),
        epoch: this.#epoch,
        body: encodeGenerate(request),
        contentType: CONTENT.frame,
        signal,
      }
      for await (const line of this.#connection.lines('generate', call, this.#deadlines.silence)) {
        const event = decodeEvent(line)
        hasEnded ||= event?.kind === 'end'
        if (event !== undefined) yield event
      }
    } catch (error) {
      if (hasEnded) return
      throw this.#engineError(error, signal)
    }
    if (!hasEnded) throw this.#lost('its stream ended without an end event')
  }

  async enterTraining(epoch: number): Promise<void> {
    await this.#command('enter-training', epoch, this.#deadlines.drain)
  }

  async enterRollout(epoch: number): Promise<void> {
    await this.#command('enter-rollout', epoch, this.#deadlines.control)
  }

  async pullWeights(epoch: number, from: string, policyVersion: number): Promise<void> {
    await this.#command('pull-weights', epoch, this.#deadlines.transfer, { from, policyVersion })
  }

  async setPolicyVersion(epoch: number, policyVersion: number): Promise<void> {
    await this.#command('set-policy-version', epoch, this.#deadlines.control, { policyVersion })
  }

  async zeroGradients(epoch: number): Promise<void> {
    await this.#command('zero-gradients', epoch, this.#deadlines.control)
  }

  async forwardBackward(
    epoch: number,
    key: string,
    batch: MicroBatch,
    objective: Objective,
  ): Promise<ForwardBackwardResult> {
    return decodeMicroResult(await this.#microStep('forward-backward', epoch, key, encodeMicroStep(batch, objective)))
  }

  async holdGradient(epoch: number, key: string, batch: MicroBatch, objective: Objective): Promise<HeldResult> {
    return decodeHeldResult(await this.#microStep('hold-gradient', epoch, key, encodeMicroStep(batch, objective)))
  }

  async applyHeld(epoch: number, key: string, held: string, scale: number): Promise<void> {
    await this.#command('apply-held', epoch, this.#deadlines.forwardBackward, { held, scale }, key)
  }

  async dropHeld(epoch: number, held?: readonly string[]): Promise<void> {
    await this.#command('drop-held', epoch, this.#deadlines.forwardBackward, { held })
  }

  async reduceGradients(epoch: number, from: readonly string[]): Promise<void> {
    await this.#command('reduce-gradients', epoch, this.#deadlines.transfer, { from })
  }

  async optimizerStep(epoch: number, key: string, params: OptimizerParams): Promise<{ readonly gradientNorm: number }> {
    const answer = await this.#command('optimizer-step', epoch, this.#deadlines.optimizerStep, params, key)
    const gradientNorm = realFrom((answer as { gradientNorm?: unknown }).gradientNorm)
    if (gradientNorm !== undefined) return { gradientNorm }
    throw this.#strange('optimizer-step', 'it has no gradient norm')
  }

  async saveCheckpoint(epoch: number, folder: string): Promise<void> {
    await this.#command('save-checkpoint', epoch, this.#deadlines.checkpoint, { folder })
  }

  async loadCheckpoint(epoch: number, folder: string, policyVersion: number): Promise<void> {
    await this.#command('load-checkpoint', epoch, this.#deadlines.checkpoint, { folder, policyVersion })
  }

  async pinKv(epoch: number, executionIds: readonly ExecutionId[], ttlMs: number): Promise<readonly PinnedKv[]> {
    const answer = await this.#command('pin-kv', epoch, this.#deadlines.handover, { executionIds, ttlMs })
    const { pinned } = this.#parse(pinnedSchema, 'pin-kv', answer)
    return pinned.map((p) => ({ ...p, executionId: executionId(p.executionId) }))
  }

  /** @throws GyreError E_CELL_UNREACHABLE (the other cell), E_TRANSFER_LAYOUT, E_TRANSFER_CANCELLED, E_ENGINE_KV_GONE. */
  async fetchKv(epoch: number, from: string, executionIds: readonly ExecutionId[]): Promise<FetchedKv> {
    const answer = await this.#command('fetch-kv', epoch, this.#deadlines.handover, { from, executionIds })
    return this.#parse(fetchedSchema, 'fetch-kv', answer)
  }

  async releaseKv(epoch: number): Promise<void> {
    await this.#command('release-kv', epoch, this.#deadlines.handover)
  }

  /** Ends this side's connections; the cell goes on. */
  async disconnect(): Promise<void> {
    await this.#connection.close()
  }

  async #command(verb: Verb, epoch: number, limitMs: number, body: unknown = {}, key?: string): Promise<unknown> {
    this.#epoch = Math.max(this.#epoch, epoch)
    const keyed = key === undefined ? {} : { key }
    return this.#connection.json(verb, { deadline: new Deadline(verb, limitMs), epoch, ...keyed }, body)
  }

  async #microStep(verb: Verb, epoch: number, key: string, body: readonly Uint8Array[]): Promise<Uint8Array> {
    this.#epoch = Math.max(this.#epoch, epoch)
    const deadline = new Deadline(verb, this.#deadlines.forwardBackward)
    const call = { deadline, epoch, key, body, contentType: CONTENT.frame }
    return (await this.#connection.call(verb, call)).body
  }

  #parse<T>(schema: ZodType<T>, verb: Verb, answer: unknown): T {
    const parsed = schema.safeParse(answer)
    if (parsed.success) return parsed.data
    throw this.#strange(verb, parsed.error.message)
  }

  #strange(verb: Verb, why: string): GyreError {
    return new GyreError(`the answer of ${this.cellId} to ${verb} does not follow the protocol: ${why}`, {
      boundary: 'cell',
      code: 'E_CELL_PROTOCOL',
    })
  }

  #engineError(error: unknown, signal: AbortSignal): unknown {
    if (signal.aborted) {
      return engineError('E_ENGINE_CANCELLED', `the generation on ${this.cellId} was cancelled by its caller`)
    }
    if (hasCode(error, 'E_CELL_NOT_ADMITTING') || hasCode(error, 'E_CELL_FENCED')) {
      return engineError('E_ENGINE_NOT_ADMITTING', `${this.cellId} admits no generation: ${error.message}`)
    }
    if (hasCode(error, 'E_CELL_UNREACHABLE')) return this.#lost(error.message)
    if (hasCode(error, 'E_CELL_TIMEOUT')) return engineError('E_ENGINE_TIMEOUT', `${this.cellId}: ${error.message}`)
    return error
  }

  #lost(why: string): GyreError {
    return engineError('E_ENGINE_UNREACHABLE', `the generation on ${this.cellId} was lost: ${why}`)
  }
}

function engineError(code: `E_ENGINE_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'engine', code, retryable: true })
}
