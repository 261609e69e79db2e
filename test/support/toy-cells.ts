/**
 * @file Cells in one process for tests of the controller: they really add up gradients, and can die, hang, slow down
 * or find the disk full.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../src/core/errors.ts'
import { cellId, engineId } from '../../src/core/ids.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import type {
  Cell,
  CellHealth,
  CellHello,
  CellSupervisor,
  FetchedKv,
  HeldResult,
  PinnedKv,
} from '../../src/ports/cell.ts'
import type { GenerateEvent, GenerateRequest, PublishedWeights, StandaloneEngine } from '../../src/ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch } from '../../src/training/batch.ts'
import { add, gradientOf, PARAMETERS, TOY_RESULT } from './toy-training.ts'

export const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, ms)
  })

function failure(code: `E_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'cell', code, retryable: true })
}

/** What a trainer that is well answers. */
export function refusal(code: `E_TRAINER_${Uppercase<string>}`): GyreError {
  return new GyreError('not this gradient', { boundary: 'trainer', code })
}

interface Process {
  weights: Float32Array
  gradient: Float32Array
  epoch: number
  mode: 'rollout' | 'training'
  version: number
  readonly keys: Set<string>
  /** Gradients for an advantage of 1. */
  readonly held: Map<string, Float32Array>
  /** Context known of each execution, and what is kept for others. [tokens] */
  readonly cached: Map<ExecutionId, number>
  readonly pinned: Set<ExecutionId>
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
    held: new Map(),
    cached: new Map(),
    pinned: new Set(),
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
  /** Verbs that take longer. [ms] */
  readonly delays = new Map<string, number>()
  /** Verbs that fail as long as this gives an error. */
  readonly faults = new Map<string, () => Error | undefined>()
  process: Process | undefined = freshProcess()
  #generating = 0
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
    const length = request.promptIds.length - 1
    alive.cached.set(request.executionId, request.promptIds.length)
    this.#generating++
    try {
      yield* this.#tokens(request, signal, alive, length)
    } finally {
      this.#generating--
    }
  }

  async *#tokens(
    request: GenerateRequest,
    signal: AbortSignal,
    alive: Process,
    from: number,
  ): AsyncGenerator<GenerateEvent, void, undefined> {
    let length = from
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
      p.cached.clear()
      p.pinned.clear()
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
      p.held.clear()
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
      p.held.clear()
    })
  }

  async forwardBackward(epoch: number, key: string, batch: MicroBatch): Promise<ForwardBackwardResult> {
    await this.#verb('forwardBackward', epoch, (p) => {
      if (p.keys.has(key)) return
      p.keys.add(key)
      add(p.gradient, gradientOf(batch))
    })
    return TOY_RESULT
  }

  async holdGradient(epoch: number, key: string, batch: MicroBatch): Promise<HeldResult> {
    await this.#verb('holdGradient', epoch, (p) => {
      const sign = batch.targetAdvantages[0] ?? 1
      const gradient = new Float32Array(PARAMETERS)
      add(gradient, gradientOf(batch), sign)
      p.held.set(key, gradient)
    })
    return { ...TOY_RESULT, outsideTokens: 0 }
  }

  async applyHeld(epoch: number, key: string, held: string, scale: number): Promise<void> {
    await this.#verb('applyHeld', epoch, (p) => {
      if (p.keys.has(key)) return
      const gradient = p.held.get(held)
      if (gradient === undefined) throw refusal('E_TRAINER_NOT_HELD')
      p.keys.add(key)
      p.held.delete(held)
      add(p.gradient, gradient, scale)
    })
  }

  async dropHeld(epoch: number, held?: readonly string[]): Promise<void> {
    await this.#verb('dropHeld', epoch, (p) => {
      for (const key of held ?? [...p.held.keys()]) p.held.delete(key)
    })
  }

  async reduceGradients(epoch: number, from: readonly string[]): Promise<void> {
    await this.#verb('reduceGradients', epoch, (p) => {
      for (const address of from) {
        add(p.gradient, this.#peer(address).gradient)
      }
    })
  }

  async optimizerStep(epoch: number): Promise<{ readonly gradientNorm: number }> {
    let norm = 0
    await this.#verb('optimizerStep', epoch, (p) => {
      norm = Math.hypot(...p.gradient)
      add(p.weights, p.gradient)
      p.gradient.fill(0)
      p.held.clear()
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
      p.held.clear()
    })
  }

  async pinKv(epoch: number, executionIds: readonly ExecutionId[]): Promise<readonly PinnedKv[]> {
    const pinned: PinnedKv[] = []
    await this.#verb('pinKv', epoch, (p) => {
      for (const id of executionIds) {
        const tokens = p.cached.get(id)
        if (tokens === undefined) continue
        p.pinned.add(id)
        pinned.push({ executionId: id, tokens, bytes: 8 * tokens })
      }
    })
    return pinned
  }

  async fetchKv(epoch: number, from: string, executionIds: readonly ExecutionId[]): Promise<FetchedKv> {
    let [executions, tokens] = [0, 0]
    await this.#verb('fetchKv', epoch, (p) => {
      const peer = this.#peer(from)
      for (const id of executionIds) {
        const length = peer.pinned.has(id) ? peer.cached.get(id) : undefined
        if (length === undefined) continue
        p.cached.set(id, length)
        executions++
        tokens += length
      }
    })
    return { executions, tokens, bytes: 8 * tokens }
  }

  async releaseKv(epoch: number): Promise<void> {
    await this.#verb('releaseKv', epoch, (p) => p.pinned.clear())
  }

  async health(): Promise<CellHealth> {
    if (this.process === undefined) throw failure('E_CELL_UNREACHABLE', `${this.id} is down`)
    if (this.hangs.has('health')) await new Promise(() => {})
    const { mode, epoch, version } = this.process
    return { protocolVersion: 1, cellId: this.cellId, mode, epoch, policyVersion: version, running: this.#generating }
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
    const fault = this.faults.get(name)?.()
    if (fault !== undefined) throw fault
    if (epoch < alive.epoch) throw failure('E_CELL_FENCED', `epoch ${epoch} is over`)
    alive.epoch = epoch
    const turn = this.#after(alive, this.#verbMs + (this.delays.get(name) ?? 0), act)
    alive.tail = turn.catch(() => undefined)
    await turn
  }

  async #after(alive: Process, delayMs: number, act: (process: Process) => void): Promise<void> {
    await alive.tail
    await pause(delayMs)
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
    cell?.delays.clear()
    if (cell !== undefined) cell.process = freshProcess()
  }

  close(): Promise<void> {
    return Promise.resolve()
  }
}

/** A rollout engine beside the cells that can go away and come back. */
export class ToyStandalone implements StandaloneEngine {
  readonly id = engineId('standalone-0')
  readonly slots: number
  isUp = true
  version = -1
  /** Versions taken, in order. */
  readonly taken: number[] = []
  probes = 0

  constructor(slots: number) {
    this.slots = slots
  }

  probe(): Promise<void> {
    this.probes++
    return this.isUp ? Promise.resolve() : Promise.reject(failure('E_ENGINE_UNREACHABLE', 'nobody listens'))
  }

  async takeWeights({ policyVersion }: PublishedWeights): Promise<void> {
    await pause(1)
    if (!this.isUp) throw failure('E_ENGINE_UNREACHABLE', 'nobody listens')
    this.version = policyVersion
    this.taken.push(policyVersion)
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    let length = request.promptIds.length - 1
    for (let left = request.sampling.maxTokens; left > 0; left--) {
      await pause(1)
      if (signal.aborted) throw failure('E_ENGINE_CANCELLED', 'cancelled')
      if (!this.isUp) throw failure('E_ENGINE_UNREACHABLE', `${this.id} went away`)
      yield { kind: 'tokens', tokenIds: [length++], logprobs: [-1], policyVersions: [this.version] }
    }
    yield { kind: 'end', finishReason: 'stop', cachedTokens: 0 }
  }
}
