/** @file The cell protocol, as the control process and the cell process both see it. */
import type { CellId, ExecutionId } from '../core/ids.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import type { Engine, GenerateEvent, GenerateRequest } from './engine.ts'

export const CELL_PROTOCOL_VERSION = 1

export interface CellHello {
  readonly protocolVersion: number
  readonly cellId: CellId
  /** Executions it serves at once while in rollout. [executions] */
  readonly slots: number
  readonly parameterCount: number
  readonly maxContext: number
  readonly vocabSize: number
  /** Name of the numeric backend, for example `wasm-simd`. One run uses one backend. */
  readonly backend: string
  readonly policyVersion: number
  readonly epoch: number
}

export type CellMode = 'rollout' | 'training'

/** The answer of `health`, which every cell gives at once, whatever it is doing. */
export interface CellHealth {
  readonly protocolVersion: number
  readonly cellId: string
  readonly mode: CellMode
  readonly epoch: number
  readonly policyVersion: number
  /** Generations running at the moment. */
  readonly running: number
}

/** What a cell has cached of one execution. */
export interface PinnedKv {
  readonly executionId: ExecutionId
  /** Whole blocks only, of its longest path. [tokens] */
  readonly tokens: number
  readonly bytes: number
}

/** What a hand-over brought. */
export interface FetchedKv {
  /** Now in the cache of the destination. [executions], [tokens] */
  readonly executions: number
  readonly tokens: number
  readonly bytes: number
}

/**
 * One engine that can generate and train, inside its own process. The numeric part of a cell:
 * `adapters/engine/embedded` implements it, `src/cell` serves it over the protocol.
 *
 * Contract: calls may come concurrently; forwardBackward, reduce and optimizer calls are applied in
 * the order they were made. Weights change only through optimizerStep, importWeights and load.
 */
export interface CellEngine {
  readonly parameterCount: number
  readonly maxContext: number
  readonly vocabSize: number
  readonly backend: string
  readonly policyVersion: number
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
  /** Adds this batch's gradient to the accumulator. */
  forwardBackward(batch: MicroBatch, objective: Objective): Promise<ForwardBackwardResult>
  zeroGradients(): Promise<void>
  /** [parameterCount] copy of the accumulated gradient. */
  exportGradients(): Promise<Float32Array>
  /** Adds a gradient of another cell, [parameterCount]. */
  addGradients(gradients: Float32Array): Promise<void>
  /** One AdamW update from the accumulator, which is then zero. Does not change policyVersion. */
  optimizerStep(params: OptimizerParams): Promise<{ readonly gradientNorm: number }>
  exportWeights(): Promise<Float32Array>
  /** Replaces the weights and stamps tokens generated from now on with `policyVersion`. Drops every cached prefix. */
  importWeights(weights: Float32Array, policyVersion: number): Promise<void>
  /** Stamps the present weights with a version (publication on the cell that trained them). */
  setPolicyVersion(policyVersion: number): Promise<void>
  /** Writes `model.safetensors`, `config.json` and the optimizer state into an existing folder. */
  save(folder: string): Promise<void>
  load(folder: string, policyVersion: number): Promise<void>
  close(): Promise<void>
}

/**
 * A remote cell. Every command carries the caller's epoch: a cell that has seen a higher one answers
 * E_CELL_FENCED. Every call has a deadline and ends with E_CELL_TIMEOUT when it passes; a dead process
 * gives E_CELL_UNREACHABLE.
 */
export interface Cell extends Engine {
  readonly cellId: CellId
  hello(): Promise<CellHello>
  /** Stops admission, cancels every generation, and returns once no generation runs. Idempotent. */
  enterTraining(epoch: number): Promise<void>
  enterRollout(epoch: number): Promise<void>
  /** Pulls the weights of another cell over its socket, and stamps them. */
  pullWeights(epoch: number, from: string, policyVersion: number): Promise<void>
  setPolicyVersion(epoch: number, policyVersion: number): Promise<void>
  zeroGradients(epoch: number): Promise<void>
  /** `key` makes a repeated delivery of the same micro-step count once. */
  forwardBackward(epoch: number, key: string, batch: MicroBatch, objective: Objective): Promise<ForwardBackwardResult>
  /** Pulls and adds the gradients of other cells in the order given. */
  reduceGradients(epoch: number, from: readonly string[]): Promise<void>
  optimizerStep(epoch: number, key: string, params: OptimizerParams): Promise<{ readonly gradientNorm: number }>
  saveCheckpoint(epoch: number, folder: string): Promise<void>
  loadCheckpoint(epoch: number, folder: string, policyVersion: number): Promise<void>
  /**
   * Keeps the key-value blocks of these executions from being evicted until `releaseKv`, a change of weights or
   * `ttlMs`. The cell goes on generating. An execution of which nothing is cached is left out.
   */
  pinKv(epoch: number, executionIds: readonly ExecutionId[], ttlMs: number): Promise<readonly PinnedKv[]>
  /**
   * Takes pinned blocks of another cell into the cache; a generation of one of these executions waits for them.
   * Blocks of other weights, or that find no room, are left: their tokens are computed again.
   * @param from address of the cell that pinned them.
   */
  fetchKv(epoch: number, from: string, executionIds: readonly ExecutionId[]): Promise<FetchedKv>
  releaseKv(epoch: number): Promise<void>
  /** @throws GyreError E_CELL_TIMEOUT, E_CELL_UNREACHABLE. */
  health(deadlineMs: number): Promise<CellHealth>
  /** Where other cells reach this one (a Unix socket path or host:port). */
  readonly address: string
}

/** Owns the cell processes: starts them, restarts them after a death, ends them. */
export interface CellSupervisor {
  readonly cells: readonly Cell[]
  /** Called with the index of a cell whose process ended unasked, after `restart` it is usable again. */
  onDeath(listener: (index: number) => void): void
  restart(index: number): Promise<void>
  close(): Promise<void>
}
