/**
 * @file What stands around toy cells in tests of the controller: a forwarding point that really moves requests, and the
 * run's work kept in memory.
 *
 * Parameter g of the policy adds up the micro-steps of group g, each of its own size, so the final weights show what was
 * trained how often.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { executionId, groupId } from '../../src/core/ids.ts'
import type { EngineId, ExecutionId, GroupId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import type { Engine } from '../../src/ports/engine.ts'
import type { ExecutionEndpoint, ForwardingPoint, ForwardingStats, RouteChange } from '../../src/ports/forwarding.ts'
import type { CheckpointSummary, Controller, RunWork, StepSummary } from '../../src/run/controller-types.ts'
import type { CreatedGroup } from '../../src/scheduler/messages.ts'
import type { MicroBatch, Objective, OptimizerParams } from '../../src/training/batch.ts'
import { pause } from './toy-cells.ts'
import { PARAMETERS, ToyEarly, toyBatch } from './toy-training.ts'

interface Call {
  readonly executionId: ExecutionId
  readonly tokens: number[]
  engine: EngineId | undefined
  abort: AbortController
  moves: number
}

/** Holds, cancels and moves calls as the port says. */
export class ToyForwarding implements ForwardingPoint {
  readonly #engines = new Map<EngineId, Engine>()
  readonly #routes = new Map<ExecutionId, RouteChange>()
  readonly #calls = new Set<Call>()
  moved = 0
  answered = 0

  setEngine(engine: Engine): void {
    this.#engines.set(engine.id, engine)
  }

  removeEngine(id: EngineId): void {
    this.#engines.delete(id)
    for (const call of this.#calls) if (call.engine === id) call.abort.abort()
  }

  openExecution(): ExecutionEndpoint {
    return { baseUrl: '', apiKey: '' }
  }

  setRoutes(changes: readonly RouteChange[]): void {
    for (const change of changes) {
      const present = this.#routes.get(change.executionId)
      if (present === undefined || change.routeEpoch >= present.routeEpoch) this.#routes.set(change.executionId, change)
    }
  }

  async cancelInFlight(id: EngineId): Promise<number> {
    const running = [...this.#calls].filter((call) => call.engine === id)
    for (const call of running) call.abort.abort()
    while (running.some((call) => this.#calls.has(call) && call.engine === id)) await pause(1)
    return running.length
  }

  closeExecution(): Promise<{ modelCalls: number; sampledTokens: number; harnessErrors: number }> {
    return Promise.resolve({ modelCalls: 0, sampledTokens: 0, harnessErrors: 0 })
  }

  stats(): ForwardingStats {
    const held = [...this.#calls].filter((call) => call.engine === undefined).length
    const zero = { sampledTokens: 0, harnessErrors: 0, tokensMismatched: 0 }
    return { ...zero, modelCalls: this.answered, requestsMoved: this.moved, held }
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  /** One model call of `length` tokens; the answer counts up from 0 wherever it was made. */
  async call(id: ExecutionId, length: number, stop: AbortSignal): Promise<readonly number[]> {
    const call: Call = { executionId: id, tokens: [], engine: undefined, abort: new AbortController(), moves: 0 }
    this.#calls.add(call)
    try {
      while (call.tokens.length < length) {
        stop.throwIfAborted()
        await this.#serve(call, length)
      }
    } finally {
      this.#calls.delete(call)
    }
    this.answered++
    return call.tokens
  }

  async #serve(call: Call, length: number): Promise<void> {
    const target = this.#routes.get(call.executionId)?.engineId
    const engine = target === undefined ? undefined : this.#engines.get(target)
    if (engine === undefined) return pause(1)
    call.engine = engine.id
    call.abort = new AbortController()
    const request = { requestId: '', executionId: call.executionId, promptIds: Int32Array.from([0, ...call.tokens]) }
    const sampling = {
      maxTokens: length - call.tokens.length,
      temperature: 1,
      topP: 1,
      topK: 0,
      stopTokenIds: [],
      seed: 0,
    }
    try {
      for await (const event of engine.generate({ ...request, sampling }, call.abort.signal)) {
        if (event.kind === 'tokens') call.tokens.push(...event.tokenIds)
      }
    } catch {
      this.moved++
      await pause(1)
    }
    call.engine = undefined
  }
}

export interface ToyWorkOptions {
  readonly seed: number
  readonly groupSize: number
  /** Tokens of the calls of the longest executions; most are far shorter. */
  readonly longest?: number
  readonly excludeEvery?: number
  /** Groups that are cut into no micro-step. */
  readonly emptyEvery?: number
  /** The engines answer something else than 0, 1, 2 ... */
  readonly anyTokens?: true
}

/** Executions that call the forwarding point, and books that survive a core death. */
export class ToyWork implements RunWork {
  readonly consumed: GroupId[] = []
  readonly steps: StepSummary[] = []
  readonly problems: string[] = []
  readonly cut = new Set<ExecutionId>()
  readonly early: ToyEarly
  readonly folder = mkdtempSync(join(tmpdir(), 'gyre-toy-'))
  controller: Controller | undefined
  checkpointAt: CheckpointSummary | undefined
  readonly stopped = new AbortController()
  readonly #options: ToyWorkOptions
  readonly #forwarding: ToyForwarding
  readonly #rng
  readonly #groupOf = new Map<ExecutionId, GroupId>()
  #pending: StepSummary[] = []
  #groups = 0
  #executions = 0

  constructor(options: ToyWorkOptions, forwarding: ToyForwarding) {
    this.#options = options
    this.#forwarding = forwarding
    this.#rng = seededRng(options.seed)
    this.early = new ToyEarly(
      (id) => this.#groupOf.get(id),
      (id) => this.#batches(id),
      this.problems,
    )
    mkdirSync(join(this.folder, '0'))
    writeFileSync(join(this.folder, '0', 'weights.json'), JSON.stringify(Array.from({ length: PARAMETERS }, () => 0)))
  }

  close(): void {
    this.stopped.abort()
    rmSync(this.folder, { recursive: true, force: true })
  }

  createGroups({ count }: { readonly count: number }): readonly CreatedGroup[] {
    return Array.from({ length: count }, () => {
      const id = groupId(`g${this.#groups++}`)
      return {
        groupId: id,
        executionIds: Array.from({ length: this.#options.groupSize }, () => this.#newExecution(id)),
      }
    })
  }

  startExecution(id: ExecutionId): void {
    void this.#live(id).catch(() => undefined)
  }

  async #live(id: ExecutionId): Promise<void> {
    const number = Number(id.slice(1))
    const isLong = this.#rng.below(4) === 0
    const length = isLong ? (this.#options.longest ?? 40) : 3 + this.#rng.below(8)
    for (let call = 0; call < 2 && !this.cut.has(id); call++) {
      const tokens = await this.#forwarding.call(id, length, this.stopped.signal)
      if (this.#options.anyTokens === undefined && tokens.some((token, i) => token !== i))
        this.problems.push(`${id} was answered ${tokens.join(' ')}`)
    }
    this.controller?.executionEnded(id)
    await pause(1)
    const { excludeEvery } = this.#options
    if (excludeEvery !== undefined && number % excludeEvery === 0)
      this.controller?.executionExcluded(id, 'a test says so')
    else this.controller?.executionScored(id)
  }

  /** Its harness makes no further call. */
  cutExecution(id: ExecutionId): void {
    this.cut.add(id)
  }

  newAttempt(id: ExecutionId): ExecutionId {
    return this.#newExecution(this.#groupOf.get(id))
  }

  #newExecution(group: GroupId | undefined): ExecutionId {
    const id = executionId(`e${this.#executions++}`)
    if (group !== undefined) this.#groupOf.set(id, group)
    return id
  }

  /** What training a group once adds to its parameter. */
  sumOf(id: GroupId): number {
    return this.#batches(id).reduce((sum, batch) => sum + (batch.targetAdvantages[0] ?? 0), 0)
  }

  microSteps(id: GroupId): Promise<readonly MicroBatch[]> {
    return Promise.resolve(this.#batches(id))
  }

  #batches(id: GroupId): readonly MicroBatch[] {
    const number = Number(id.slice(1))
    const { emptyEvery } = this.#options
    const count = emptyEvery !== undefined && number % emptyEvery === 0 ? 0 : 2 + (number % 3)
    return Array.from({ length: count }, (_, index) => toyBatch(number, index + 1))
  }

  objective(): Objective {
    return { kind: 'cross-entropy' }
  }

  optimizer(): OptimizerParams {
    return { learningRate: 1, beta1: 0, beta2: 0, epsilon: 1, weightDecay: 0, gradientClip: 0 }
  }

  stepDone(summary: StepSummary): void {
    this.#pending.push(summary)
  }

  stepsUndone(toStep: number): void {
    this.#pending = this.#pending.filter((s) => s.step <= toStep)
  }

  checkpointFolder(step: number): string {
    const folder = join(this.folder, String(step))
    mkdirSync(folder, { recursive: true })
    return folder
  }

  async checkpoint(summary: CheckpointSummary): Promise<void> {
    await pause(1)
    const groups = this.#pending.flatMap((s) => s.groups)
    if (groups.toSorted().join() !== summary.groups.toSorted().join())
      this.problems.push(`steps hold ${groups.join()}, checkpoint ${summary.groups.join()}`)
    this.steps.push(...this.#pending)
    this.#pending = []
    this.consumed.push(...summary.groups)
    this.checkpointAt = summary
  }
}
