/** @file Commands of the scheduler that go to a cell: which verbs, in which order, and what a failure means. */
import type { Clock } from '../core/clock.ts'
import { errorText, hasCode, invariant } from '../core/errors.ts'
import type { GroupId } from '../core/ids.ts'
import type { Cell, CellSupervisor } from '../ports/cell.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { ForwardBackwardResult, MicroBatch } from '../training/batch.ts'
import { MicroStepPace } from './controller-pace.ts'
import { applyHeld, holdGradient, type EarlyDeps } from './controller-early.ts'
import type { CommandOf, ControllerDeadlines, HeldMicroStep, RunWork } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

/** A death is usually noticed by its owner first; a peer that only felt it waits so long before it reports. [ms] */
const PEER_GRACE_MS = 250
const REDUCE_ATTEMPTS = 3

type EarlyVerb = 'hold-gradient' | 'apply-held'
export type CellVerb = CommandOf<
  'enter-training' | 'join-step' | 'train' | EarlyVerb | 'reduce' | 'optimize' | 'publish' | 'restore-cell'
>

/** What the controller learns beside the event. */
export interface CellReports {
  trained(groupId: GroupId, index: number, batch: MicroBatch, result: ForwardBackwardResult): void
  optimized(gradientNorm: number): void
  failed(cell: number, reason: string): void
  /** Its micro-step is far beyond the usual time. */
  slow(cell: number, waitedMs: number, usualMs: number): void
}

export class CellCommands {
  readonly #supervisor: CellSupervisor
  readonly #deadlines: ControllerDeadlines
  readonly #clock: Clock
  readonly #waits: Waits
  readonly #work: RunWork
  readonly #reports: CellReports
  readonly #batchOf: (groupId: GroupId, index: number) => MicroBatch
  readonly #heldOf: (groupId: GroupId, index: number) => HeldMicroStep
  readonly #folderOf: (policyVersion: number) => string
  readonly #pace = new MicroStepPace()
  #reduceFailures = 0
  /** The core may keep gradients aside. */
  #coreKeeps = false

  constructor(options: {
    readonly supervisor: CellSupervisor
    readonly deadlines: ControllerDeadlines
    readonly clock: Clock
    readonly waits: Waits
    readonly work: RunWork
    readonly reports: CellReports
    readonly batchOf: (groupId: GroupId, index: number) => MicroBatch
    readonly heldOf: (groupId: GroupId, index: number) => HeldMicroStep
    readonly folderOf: (policyVersion: number) => string
  }) {
    this.#supervisor = options.supervisor
    this.#deadlines = options.deadlines
    this.#clock = options.clock
    this.#waits = options.waits
    this.#work = options.work
    this.#reports = options.reports
    this.#batchOf = options.batchOf
    this.#heldOf = options.heldOf
    this.#folderOf = options.folderOf
  }

  cell(index: number): Cell {
    const cell = this.#supervisor.cells[index]
    invariant(cell !== undefined, `cell ${index} is one of ${this.#supervisor.cells.length}`)
    return cell
  }

  /** Carries a command out and gives the event that answers it. Never rejects. */
  async execute(command: CellVerb): Promise<SchedulerEvent> {
    try {
      return await this.#obey(command)
    } catch (error) {
      return this.#explain(command, error)
    }
  }

  /** Brings a cell to the weights of `folder` and opens it for rollout. */
  async load(index: number, epoch: number, folder: string, policyVersion: number): Promise<void> {
    const cell = this.cell(index)
    await this.#within(
      'weightsMs',
      cell.loadCheckpoint(epoch, folder, policyVersion),
      `cell ${index} loading ${folder}`,
    )
    await this.#within('switchMs', cell.enterRollout(epoch), `cell ${index} entering rollout`)
  }

  /** The core stamps its weights and writes them. */
  async save(epoch: number, folder: string, policyVersion: number): Promise<void> {
    const core = this.cell(0)
    await this.#within('switchMs', core.setPolicyVersion(epoch, policyVersion), 'stamping the core')
    await this.#within('checkpointMs', core.saveCheckpoint(epoch, folder), `saving ${folder}`)
  }

  #within<T>(deadline: keyof ControllerDeadlines, promise: Promise<T>, what: string): Promise<T> {
    return this.#waits.within(promise, this.#deadlines[deadline], what)
  }

  async #obey(command: CellVerb): Promise<SchedulerEvent> {
    switch (command.kind) {
      case 'enter-training': {
        const entering = this.cell(command.cell).enterTraining(command.epoch)
        await this.#within('switchMs', entering, `cell ${command.cell} entering training`)
        return { ...command, kind: 'entered-training' }
      }
      case 'join-step':
        return this.#join(command)
      case 'train':
        return this.#train(command)
      case 'hold-gradient':
        this.#coreKeeps ||= command.cell === 0
        return holdGradient(this.#early(command.cell), command)
      case 'apply-held':
        return this.#applyHeld(command)
      case 'reduce':
        return this.#reduce(command)
      case 'optimize':
        return this.#optimize(command)
      case 'publish':
        return this.#publish(command)
      case 'restore-cell':
        await this.load(command.cell, command.epoch, this.#folderOf(command.version), command.version)
        return { ...command, kind: 'cell-restored' }
      default:
        return command satisfies never
    }
  }

  async #join(command: CommandOf<'join-step'>): Promise<SchedulerEvent> {
    const { epoch, step } = command
    const cell = this.cell(command.cell)
    if (command.cell !== 0) {
      const pull = cell.pullWeights(epoch, this.cell(0).address, step)
      await this.#within('weightsMs', pull, `cell ${command.cell} pulling the weights of step ${step}`)
    }
    await this.#within('switchMs', cell.zeroGradients(epoch), `cell ${command.cell} zeroing its gradient`)
    return { ...command, kind: 'joined' }
  }

  async #train(command: CommandOf<'train'>): Promise<SchedulerEvent> {
    const { claim, epoch } = command
    const batch = this.#batchOf(claim.groupId, claim.index)
    const sinceMs = this.#clock.now()
    const training = this.cell(command.cell).forwardBackward(epoch, claim.key, batch, this.#work.objective())
    const result = await this.#withPatience(command, batch.tokenIds.length, training)
    this.#pace.saw(batch.tokenIds.length, this.#clock.now() - sinceMs)
    this.#reports.trained(claim.groupId, claim.index, batch, result)
    return { kind: 'micro-step-done', cell: command.cell, epoch, key: claim.key }
  }

  #early(index: number): EarlyDeps {
    const { trainMs } = this.#deadlines
    const within = <T>(promise: Promise<T>, what: string): Promise<T> => this.#waits.within(promise, trainMs, what)
    return { cell: this.cell(index), work: this.#work, within }
  }

  async #applyHeld(command: CommandOf<'apply-held'>): Promise<SchedulerEvent> {
    const { groupId, index } = command.claim
    const held = this.#heldOf(groupId, index)
    const answer = await applyHeld(this.#early(command.cell), command, held.scale)
    if (answer.kind === 'micro-step-done') {
      this.#reports.trained(groupId, index, this.#batchOf(groupId, index), held.result)
    }
    return answer
  }

  /** A satellite that is far slower than usual fails. The core has no deputy: it is only told of, up to the deadline. */
  async #withPatience<T>(command: CommandOf<'train'>, tokens: number, training: Promise<T>): Promise<T> {
    const { trainMs } = this.#deadlines
    const what = `micro-step ${command.claim.key} on cell ${command.cell}`
    const patienceMs = this.#pace.patienceMs(tokens, trainMs)
    try {
      return await this.#waits.within(training, patienceMs, what)
    } catch (error) {
      if (!hasCode(error, 'E_CELL_TIMEOUT') || patienceMs >= trainMs) throw error
      this.#reports.slow(command.cell, patienceMs, this.#pace.usualMs(tokens) ?? 0)
      if (command.cell !== 0) throw error
      return this.#waits.within(training, trainMs - patienceMs, what)
    }
  }

  async #reduce(command: CommandOf<'reduce'>): Promise<SchedulerEvent> {
    const addresses = command.from.map((index) => this.cell(index).address)
    const reducing = this.cell(0).reduceGradients(command.epoch, addresses)
    await this.#within('reduceMs', reducing, `gathering gradients of cells ${command.from.join(', ')}`)
    this.#reduceFailures = 0
    return { kind: 'reduced', epoch: command.epoch, step: command.step }
  }

  async #optimize(command: CommandOf<'optimize'>): Promise<SchedulerEvent> {
    const { epoch, key, step } = command
    if (command.empty) {
      if (this.#coreKeeps) await this.#dropHeld(epoch)
      this.#reports.optimized(0)
    } else {
      const stepping = this.cell(0).optimizerStep(epoch, key, this.#work.optimizer(step))
      const { gradientNorm } = await this.#within('optimizeMs', stepping, `optimizer step ${step + 1}`)
      this.#reports.optimized(gradientNorm)
    }
    return { kind: 'optimized', epoch, step }
  }

  /** No weights change after an empty step, so what the core keeps aside would stay. */
  async #dropHeld(epoch: number): Promise<void> {
    await this.#within('switchMs', this.cell(0).dropHeld?.(epoch) ?? Promise.resolve(), 'dropping kept gradients')
    this.#coreKeeps = false
  }

  async #publish(command: CommandOf<'publish'>): Promise<SchedulerEvent> {
    const { cell: index, epoch, version } = command
    const cell = this.cell(index)
    if (index !== 0) {
      const what = `cell ${index} taking policy version ${version}`
      try {
        await this.#within('weightsMs', cell.pullWeights(epoch, this.cell(0).address, version), what)
      } catch {
        // The core may be gone; what it published is in the checkpoint.
        await this.#within('weightsMs', cell.loadCheckpoint(epoch, this.#folderOf(version), version), what)
      }
    }
    if (command.enterRollout) {
      await this.#within('switchMs', cell.enterRollout(epoch), `cell ${index} entering rollout`)
    }
    return { kind: 'published', cell: index, epoch, version }
  }

  /** A failed verb means its cell failed, except where a peer is as likely to be the cause. */
  async #explain(command: CellVerb, error: unknown): Promise<SchedulerEvent> {
    const index = 'cell' in command ? command.cell : 0
    const isTimeout = hasCode(error, 'E_CELL_TIMEOUT')
    if (command.kind === 'join-step' && index !== 0 && !isTimeout) {
      await this.#waits.pause(PEER_GRACE_MS)
      this.#reports.failed(index, errorText(error))
      return { ...command, kind: 'join-failed' }
    }
    if (command.kind === 'reduce' && !isTimeout && ++this.#reduceFailures < REDUCE_ATTEMPTS) {
      await this.#waits.pause(PEER_GRACE_MS)
      this.#reports.failed(0, errorText(error))
      return { kind: 'reduce-failed', epoch: command.epoch, step: command.step }
    }
    this.#reduceFailures = 0
    this.#reports.failed(index, errorText(error))
    return { kind: 'cell-failed', cell: index, epoch: command.epoch }
  }
}
