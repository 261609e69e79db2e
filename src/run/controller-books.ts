/**
 * @file What the run's work is asked for and told in order: groups cut into micro-steps, steps, checkpoints. A full
 * disk is waited for: starting cells again would not empty it.
 */
import { errorText, hasCode, invariant } from '../core/errors.ts'
import type { GroupId } from '../core/ids.ts'
import type { PublishedWeights } from '../ports/engine.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { MicroBatch } from '../training/batch.ts'
import type { Fact } from './controller-onlooker.ts'
import type { CommandOf, ControllerOptions, EarlyCut, HeldMicroStep, StepSummary } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

/** Between two tries to write to a full disk, doubled up to the longest. [ms] */
const FIRST_PAUSE_MS = 1000
const LONGEST_PAUSE_MS = 30_000
/** A person has to free the space. [ms] */
const DISK_PATIENCE_MS = 30 * 60_000

export interface BooksDeps {
  readonly options: ControllerOptions
  readonly waits: Waits
  /** Has the core stamp and save its weights. */
  readonly save: (epoch: number, folder: string, policyVersion: number) => Promise<void>
  /** Fencing token of the core. */
  readonly coreEpoch: () => number
  readonly coreFailed: (reason: string) => void
  readonly abort: (reason: string) => void
  readonly tell: (fact: Fact) => void
}

/** The controller ended while it waited. */
class Ended extends Error {}
/** The core could not save, for another reason than the disk. */
class CoreLost extends Error {}

export class Books {
  readonly #deps: BooksDeps
  readonly #batches = new Map<GroupId, readonly MicroBatch[]>()
  /** Micro-steps that a kept gradient can serve. */
  readonly #held = new Map<GroupId, readonly HeldMicroStep[]>()
  /** Of the last checkpoint. */
  #published: PublishedWeights
  /** Summaries are handed over in order, and before the checkpoint that holds them. */
  #summaries: Promise<void> = Promise.resolve()

  constructor(deps: BooksDeps) {
    this.#deps = deps
    const { initial, checkpointFolder } = deps.options
    this.#published = { folder: checkpointFolder, policyVersion: initial.policyVersion }
  }

  get published(): PublishedWeights {
    return this.#published
  }

  folderOf(policyVersion: number): string {
    invariant(this.#published.policyVersion === policyVersion, `a checkpoint holds policy version ${policyVersion}`)
    return this.#published.folder
  }

  batchOf(groupId: GroupId, index: number): MicroBatch {
    const batch = this.#batches.get(groupId)?.[index]
    invariant(batch !== undefined, `micro-step ${index} of group ${groupId} was built`)
    return batch
  }

  heldOf(groupId: GroupId, index: number): HeldMicroStep {
    const held = this.#held.get(groupId)?.find((h) => h.index === index)
    invariant(held !== undefined, `micro-step ${index} of group ${groupId} can be served by a kept gradient`)
    return held
  }

  async build(command: CommandOf<'build-micro-steps'>): Promise<SchedulerEvent> {
    const { groupId, step, attempt } = command
    const { options, waits, tell } = this.#deps
    const building = this.#cut(command)
    const { batches, held } = await waits.within(
      building,
      options.deadlines.trainMs,
      `cutting group ${groupId} into micro-steps`,
    )
    this.#batches.set(groupId, batches)
    this.#held.set(groupId, held)
    tell({ kind: 'group-assigned', groupId, step, microSteps: batches.length })
    const built = { kind: 'micro-steps-built', groupId, step, attempt, count: batches.length } as const
    if (held.length === 0) return built
    return { ...built, early: held.map(({ index, executionId }) => ({ index, executionId })) }
  }

  async #cut({ groupId, step, held = [] }: CommandOf<'build-micro-steps'>): Promise<EarlyCut> {
    const { work } = this.#deps.options
    if (held.length > 0 && work.early !== undefined) return work.early.microSteps(groupId, step, held)
    return { batches: await work.microSteps(groupId, step), held: [] }
  }

  stepDone(summary: StepSummary): void {
    this.#inOrder(() => this.#deps.options.work.stepDone(summary))
  }

  stepsUndone(toStep: number): void {
    this.#inOrder(() => this.#deps.options.work.stepsUndone(toStep))
  }

  /** Once every summary given so far is taken, or was refused. */
  async settled(): Promise<void> {
    await this.#summaries.catch(() => undefined)
  }

  /** Undefined when the controller ended while it waited for the disk. */
  async checkpoint(command: CommandOf<'checkpoint'>): Promise<SchedulerEvent | undefined> {
    try {
      return await this.#checkpoint(command)
    } catch (error) {
      if (error instanceof Ended) return undefined
      throw error
    }
  }

  async #checkpoint(command: CommandOf<'checkpoint'>): Promise<SchedulerEvent> {
    const { options, waits, coreFailed, tell } = this.#deps
    const { step, burst, policyVersion, groups } = command
    const { work, clock, deadlines } = options
    const sinceMs = clock.now()
    let folder: string
    try {
      folder = await this.#patiently(() => this.#save(command))
    } catch (error) {
      if (!(error instanceof CoreLost)) throw error
      coreFailed(error.message)
      return { kind: 'checkpoint-failed', step }
    }
    await waits.within(this.#summaries, deadlines.checkpointMs, 'keeping the books of the steps')
    const summary = { step, burst, policyVersion, folder, groups }
    await this.#patiently(() =>
      waits.within(work.checkpoint(summary), deadlines.checkpointMs, `making the checkpoint of step ${step} durable`),
    )
    this.#published = { folder, policyVersion }
    for (const groupId of groups) {
      this.#batches.delete(groupId)
      this.#held.delete(groupId)
    }
    tell({ kind: 'checkpoint', summary, durationMs: clock.now() - sinceMs })
    return { kind: 'checkpointed', step }
  }

  /** Into an empty folder every time, so that what a full disk cut short gives its space back. @returns the folder. */
  async #save({ step, epoch, policyVersion }: CommandOf<'checkpoint'>): Promise<string> {
    const { options, waits, save } = this.#deps
    const making = Promise.resolve(options.work.checkpointFolder(step))
    const folder = await waits.within(making, options.deadlines.checkpointMs, `making the folder of step ${step}`)
    try {
      this.#requireCore(epoch)
      await save(epoch, folder, policyVersion)
      // A core that was restarted meanwhile would have saved weights it was never given.
      this.#requireCore(epoch)
    } catch (error) {
      throw isDiskFull(error) ? error : new CoreLost(errorText(error))
    }
    return folder
  }

  #requireCore(epoch: number): void {
    if (this.#deps.coreEpoch() !== epoch) throw new Error('the core failed before its weights were saved')
  }

  /** Tries again while the disk is full, up to a deadline. */
  async #patiently<T>(work: () => Promise<T>): Promise<T> {
    const { options, waits, tell } = this.#deps
    const sinceMs = options.clock.now()
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      try {
        return await work()
      } catch (error) {
        if (!isDiskFull(error)) throw error
        if (options.clock.now() - sinceMs + pauseMs > DISK_PATIENCE_MS) throw stayedFull(error)
        tell({ kind: 'disk-full', reason: errorText(error), retryInMs: pauseMs })
      }
      await waits.pause(pauseMs)
      if (waits.ended.aborted) throw new Ended()
    }
  }

  #inOrder(give: () => void | Promise<void>): void {
    this.#summaries = this.#summaries.then(give)
    this.#summaries.catch((error: unknown) =>
      this.#deps.abort(`the books of a step cannot be kept: ${errorText(error)}`),
    )
  }
}

/** By the code of our store, or by the words of the operating system, which cross the cell's wire as text. */
function isDiskFull(error: unknown): boolean {
  return hasCode(error, 'E_STORE_DISK') || /\b(ENOSPC|EDQUOT)\b/.test(errorText(error))
}

function stayedFull(cause: unknown): Error {
  const minutes = DISK_PATIENCE_MS / 60_000
  return new Error(`the disk stayed full for ${minutes} minutes: free space, then resume the run`, { cause })
}
