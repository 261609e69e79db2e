/**
 * @file A whole cluster in one process for tests of the controller: cells that really add up gradients and can die or
 * hang, a forwarding point that really moves requests, and the run's work kept in memory.
 *
 * Parameter g of the policy counts the micro-steps of group g, so the final weights show what was trained how often.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { GyreError } from '../../src/core/errors.ts'
import { cellId, engineId, executionId, groupId } from '../../src/core/ids.ts'
import type { EngineId, ExecutionId, GroupId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import type { Cell, CellHealth, CellHello, CellSupervisor, FetchedKv, PinnedKv } from '../../src/ports/cell.ts'
import type { Engine, GenerateEvent, GenerateRequest } from '../../src/ports/engine.ts'
import type { ExecutionEndpoint, ForwardingPoint, ForwardingStats, RouteChange } from '../../src/ports/forwarding.ts'
import type { CheckpointSummary, Controller, RunWork, StepSummary } from '../../src/run/controller-types.ts'
import type { CreatedGroup } from '../../src/scheduler/types.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../src/training/batch.ts'

export const PARAMETERS = 64

const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, ms)
  })

function failure(code: `E_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'cell', code, retryable: true })
}

interface Process {
  weights: Float32Array
  gradient: Float32Array
  epoch: number
  mode: 'rollout' | 'training'
  version: number
  readonly keys: Set<string>
  readonly death: AbortController
  tail: Promise<unknown>
}

function freshProcess(): Process {
  return {
    weights: new Float32Array(PARAMETERS),
    gradient: new Float32Array(PARAMETERS),
    epoch: 0,
    mode: 'training',
    version: -1,
    keys: new Set(),
    death: new AbortController(),
    tail: Promise.resolve(),
  }
}

export class ToyCell implements Cell {
  readonly cellId
  readonly id
  readonly address: string
  /** Verbs that never answer, to test deadlines. */
  readonly hangs = new Set<string>()
  process: Process | undefined = freshProcess()
  readonly #peers: readonly ToyCell[]
  readonly #verbMs: number

  constructor(index: number, peers: readonly ToyCell[], verbMs: number) {
    this.cellId = cellId(`cell-${index}`)
    this.id = engineId(`cell-${index}`)
    this.address = `toy:${index}`
    this.#peers = peers
    this.#verbMs = verbMs
  }

  /** Like kill -9: what runs ends as unreachable, memory is gone. */
  die(): void {
    this.process?.death.abort()
    this.process = undefined
  }

  hello(): Promise<CellHello> {
    return Promise.reject(new Error('nobody asks a toy cell'))
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const alive = this.process
    if (alive?.mode !== 'rollout') throw failure('E_ENGINE_UNREACHABLE', `${this.id} serves nothing`)
    // One token of prompt; what follows was answered before a move.
    let length = request.promptIds.length - 1
    for (let left = request.sampling.maxTokens; left > 0; left--) {
      await pause(1)
      if (signal.aborted) throw failure('E_ENGINE_CANCELLED', 'cancelled')
      if (alive.death.signal.aborted) throw failure('E_ENGINE_UNREACHABLE', `${this.id} died`)
      yield { kind: 'tokens', tokenIds: [length++], logprobs: [-1], policyVersions: [alive.version] }
    }
    yield { kind: 'end', finishReason: 'stop', cachedTokens: 0 }
  }

  async enterTraining(epoch: number): Promise<void> {
    await this.#verb('enterTraining', epoch, (p) => {
      p.mode = 'training'
    })
  }

  async enterRollout(epoch: number): Promise<void> {
    await this.#verb('enterRollout', epoch, (p) => {
      p.mode = 'rollout'
    })
  }

  async pullWeights(epoch: number, from: string, policyVersion: number): Promise<void> {
    await this.#verb('pullWeights', epoch, (p) => {
      p.weights = this.#peer(from).weights.slice()
      p.version = policyVersion
    })
  }

  async setPolicyVersion(epoch: number, policyVersion: number): Promise<void> {
    await this.#verb('setPolicyVersion', epoch, (p) => {
      p.version = policyVersion
    })
  }

  async zeroGradients(epoch: number): Promise<void> {
    await this.#verb('zeroGradients', epoch, (p) => {
      p.gradient.fill(0)
    })
  }

  async forwardBackward(epoch: number, key: string, batch: MicroBatch): Promise<ForwardBackwardResult> {
    await this.#verb('forwardBackward', epoch, (p) => {
      if (p.keys.has(key)) return
      p.keys.add(key)
      const group = batch.tokenIds[0] ?? 0
      p.gradient[group] = (p.gradient[group] ?? 0) + 1
    })
    return { loss: 0.5, entropy: 0.1, logprobs: new Float32Array(1), clippedTokens: 0, maskedTokens: 0 }
  }

  async reduceGradients(epoch: number, from: readonly string[]): Promise<void> {
    await this.#verb('reduceGradients', epoch, (p) => {
      for (const address of from) {
        const { gradient } = this.#peer(address)
        p.gradient.forEach((value, i) => (p.gradient[i] = value + (gradient[i] ?? 0)))
      }
    })
  }

  async optimizerStep(epoch: number): Promise<{ readonly gradientNorm: number }> {
    let norm = 0
    await this.#verb('optimizerStep', epoch, (p) => {
      norm = Math.hypot(...p.gradient)
      p.weights.forEach((value, i) => (p.weights[i] = value + (p.gradient[i] ?? 0)))
      p.gradient.fill(0)
    })
    return { gradientNorm: norm }
  }

  async saveCheckpoint(epoch: number, folder: string): Promise<void> {
    await this.#verb('saveCheckpoint', epoch, (p) => {
      writeFileSync(join(folder, 'weights.json'), JSON.stringify([...p.weights]))
    })
  }

  async loadCheckpoint(epoch: number, folder: string, policyVersion: number): Promise<void> {
    await this.#verb('loadCheckpoint', epoch, (p) => {
      p.weights = Float32Array.from(JSON.parse(readFileSync(join(folder, 'weights.json'), 'utf8')) as number[])
      p.version = policyVersion
      p.gradient.fill(0)
    })
  }

  pinKv(): Promise<readonly PinnedKv[]> {
    return Promise.resolve([])
  }

  fetchKv(): Promise<FetchedKv> {
    return Promise.resolve({ executions: 0, tokens: 0, bytes: 0 })
  }

  releaseKv(): Promise<void> {
    return Promise.resolve()
  }

  health(): Promise<CellHealth> {
    return Promise.reject(new Error('nobody asks a toy cell'))
  }

  #peer(address: string): Process {
    const peer = this.#peers.find((cell) => cell.address === address)?.process
    if (peer === undefined) throw failure('E_CELL_UNREACHABLE', `${address} does not answer`)
    return peer
  }

  /** In the order of the calls, after a moment, unless the process dies meanwhile. */
  async #verb(name: string, epoch: number, act: (process: Process) => void): Promise<void> {
    const alive = this.process
    if (alive === undefined) throw failure('E_CELL_UNREACHABLE', `${this.id} is down`)
    if (this.hangs.has(name)) await new Promise(() => {})
    if (epoch < alive.epoch) throw failure('E_CELL_FENCED', `epoch ${epoch} is over`)
    alive.epoch = epoch
    const turn = this.#after(alive.tail, alive, act)
    alive.tail = turn.catch(() => undefined)
    await turn
  }

  async #after(before: Promise<unknown>, alive: Process, act: (process: Process) => void): Promise<void> {
    await before
    await pause(this.#verbMs)
    if (alive.death.signal.aborted) throw failure('E_CELL_UNREACHABLE', `${this.id} died`)
    act(alive)
  }
}

export class ToySupervisor implements CellSupervisor {
  readonly cells: readonly ToyCell[]
  restarts = 0
  readonly #listeners: ((index: number) => void)[] = []

  constructor(count: number, verbMs = 1) {
    const cells: ToyCell[] = []
    for (let i = 0; i < count; i++) cells.push(new ToyCell(i, cells, verbMs))
    this.cells = cells
  }

  onDeath(listener: (index: number) => void): void {
    this.#listeners.push(listener)
  }

  kill(index: number): void {
    this.cells[index]?.die()
    setTimeout(() => {
      for (const listener of this.#listeners) listener(index)
    }, 5)
  }

  async restart(index: number): Promise<void> {
    this.restarts++
    const cell = this.cells[index]
    cell?.die()
    await pause(10)
    cell?.hangs.clear()
    if (cell !== undefined) cell.process = freshProcess()
  }

  close(): Promise<void> {
    return Promise.resolve()
  }
}

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
  /** The engines answer something else than 0, 1, 2 ... */
  readonly anyTokens?: true
}

/** Executions that call the forwarding point, and books that survive a core death. */
export class ToyWork implements RunWork {
  readonly consumed: GroupId[] = []
  readonly steps: StepSummary[] = []
  readonly problems: string[] = []
  readonly folder = mkdtempSync(join(tmpdir(), 'gyre-toy-'))
  controller: Controller | undefined
  checkpointAt: CheckpointSummary | undefined
  readonly stopped = new AbortController()
  readonly #options: ToyWorkOptions
  readonly #forwarding: ToyForwarding
  readonly #rng
  #pending: StepSummary[] = []
  #groups = 0
  #executions = 0

  constructor(options: ToyWorkOptions, forwarding: ToyForwarding) {
    this.#options = options
    this.#forwarding = forwarding
    this.#rng = seededRng(options.seed)
    mkdirSync(join(this.folder, '0'))
    writeFileSync(join(this.folder, '0', 'weights.json'), JSON.stringify(Array.from({ length: PARAMETERS }, () => 0)))
  }

  close(): void {
    this.stopped.abort()
    rmSync(this.folder, { recursive: true, force: true })
  }

  createGroups({ count }: { readonly count: number }): readonly CreatedGroup[] {
    return Array.from({ length: count }, () => ({
      groupId: groupId(`g${this.#groups++}`),
      executionIds: Array.from({ length: this.#options.groupSize }, () => executionId(`e${this.#executions++}`)),
    }))
  }

  startExecution(id: ExecutionId): void {
    void this.#live(id).catch(() => undefined)
  }

  async #live(id: ExecutionId): Promise<void> {
    const number = Number(id.slice(1))
    const isLong = this.#rng.below(4) === 0
    const length = isLong ? (this.#options.longest ?? 40) : 3 + this.#rng.below(8)
    for (let call = 0; call < 2; call++) {
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

  cutExecution(): void {}

  newAttempt(): ExecutionId {
    return executionId(`e${this.#executions++}`)
  }

  microStepsOf(id: GroupId): number {
    return 2 + (Number(id.slice(1)) % 3)
  }

  microSteps(id: GroupId): Promise<readonly MicroBatch[]> {
    const ids = Int32Array.of(Number(id.slice(1)))
    const floats = new Float32Array(1)
    const batch: MicroBatch = {
      tokenIds: ids,
      positions: Int32Array.of(0),
      subtreeEnd: Int32Array.of(1),
      targetRows: Int32Array.of(0),
      targetIds: ids,
      targetWeights: Float32Array.of(0.1),
      targetAdvantages: floats,
      targetBehaviorLogprobs: floats,
    }
    return Promise.resolve(Array.from({ length: this.microStepsOf(id) }, () => batch))
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
