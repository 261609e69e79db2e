/** @file The cell protocol, as the control process and the cell process both see it. */
import type { CellId, ExecutionId } from '../core/ids.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import type { GradientSums } from '../training/gradient-sums.ts'
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
  /** Whether its cache can go to another cell, and take blocks of one. */
  readonly kv: 'blocks' | 'none'
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

/** What a block of an engine's key-value cache is. Engines of equal layouts can take each other's. */
export interface KvLayout {
  /** Backend and shape: blocks of other names mean something else. */
  readonly name: string
  /** Positions of one block. [tokens] */
  readonly blockTokens: number
  /** Numbers of one block, all layers and heads. [float32] */
  readonly blockFloats: number
}

/** The computed beginning of one path of an execution, in whole blocks. */
export interface KvSequence {
  readonly executionId: ExecutionId
  /** [blocks * blockTokens] */
  readonly tokenIds: Int32Array
  /** Names of its blocks in its engine; sequences with a common beginning share them. [blocks] */
  readonly blocks: Int32Array
}

/** Pinned sequences, as another engine hears of them. */
export interface KvOffer {
  readonly layout: KvLayout
  /** Of the weights that computed the blocks. */
  readonly policyVersion: number
  /** Of the pin: a block that was unpinned since, and pinned again, is not the same. */
  readonly serial: number
  /** Of one execution: the running ones first, then the most recent. */
  readonly sequences: readonly KvSequence[]
}

/** Room that an engine keeps for blocks on their way. Its owner closes it. */
export interface KvArrival {
  /** Blocks of the offer that are to come, in this order; what the engine has already is not among them. */
  readonly wanted: Int32Array
  /** The sequences that found room, in the order in which they will be whole. */
  readonly sequences: readonly {
    /** Index into the offer's sequences. */
    readonly index: number
    /** Wanted blocks that must have come before it can be used. */
    readonly after: number
  }[]
  /**
   * The next blocks, [blocks * blockFloats], which the callee may keep. A sequence can be used once its last one came.
   * @throws GyreError E_ENGINE_KV_GONE when the weights changed or running generations needed the room.
   */
  write(data: Float32Array): Promise<void>
  /** Gives back the room of sequences that are not whole. Idempotent. */
  close(): Promise<void>
}

/**
 * The cache of an engine as blocks that another engine can take. Running generations go first: when the pool is
 * exhausted, they take room from pins and arrivals too.
 */
export interface KvCache {
  readonly layout: KvLayout
  /** Keeps what is cached of these executions until `unpin` or a change of weights. A repetition pins the present state. */
  pin(executionIds: readonly ExecutionId[]): Promise<KvOffer>
  /** Pinned blocks, [blocks.length * blockFloats]. @throws GyreError E_ENGINE_KV_GONE when one is no longer pinned. */
  read(serial: number, blocks: Int32Array): Promise<Float32Array>
  unpin(): Promise<void>
  /**
   * Finds room without evicting a running generation. Sequences that find none, and all when the policy version is
   * not the engine's own or the layout differs, are left out.
   */
  accept(offer: KvOffer): Promise<KvArrival>
}

/** What a held gradient is worth before its advantage is known. */
export interface HeldResult extends ForwardBackwardResult {
  /**
   * Targets whose ratio is outside [1 - clipLow, 1 + clipHigh], where the clipped loss depends on the sign of the
   * advantage. When 0, the gradient serves advantages of both signs, else only those of its own. [tokens]
   */
  readonly outsideTokens: number
}

/**
 * Gradients of micro-steps computed before the advantage of their one execution is known. The clipped objective
 * without entropy bonus is linear in the advantage as long as its sign stays, so the gradient for an advantage of 1
 * or -1 is kept aside and scaled later. Every change of weights and zeroGradients drop all of them.
 */
export interface HeldGradients {
  /**
   * @param batch its advantages are all 1 or all -1, the supposed sign.
   * @throws GyreError E_TRAINER_NOT_HOLDABLE for another objective or other advantages, E_TRAINER_HELD_FULL.
   */
  hold(key: string, batch: MicroBatch, objective: Objective): Promise<HeldResult>
  /**
   * Adds `scale` times the gradient of an advantage of 1 to the accumulator and forgets it. Within 1e-6 of the
   * direct gradient, relative to its largest element; not bit for bit, as it is rounded once more.
   * @throws GyreError E_TRAINER_NOT_HELD, E_TRAINER_HELD_SIGN, E_TRAINER_RANGE; nothing is added, nothing forgotten.
   */
  apply(key: string, scale: number): Promise<void>
  /** All when no keys are given. Unknown keys are no error. */
  drop(keys?: readonly string[]): Promise<void>
}

/**
 * One engine that can generate and train, inside its own process. The numeric part of a cell:
 * `adapters/engine/embedded` implements it, `src/cell` serves it over the protocol.
 *
 * Contract: calls may come concurrently; forwardBackward, reduce and optimizer calls are applied in
 * the order they were made. Weights change only through optimizerStep, importWeights and load.
 *
 * Gradients add up without regard to order, bit for bit: training/gradient-sums.ts says how. The gradient of a
 * micro-step depends on weights and batch alone, neither on threads nor on what the engine did before. A micro-step
 * that fails adds nothing.
 */
export interface CellEngine {
  readonly parameterCount: number
  readonly maxContext: number
  readonly vocabSize: number
  readonly backend: string
  readonly policyVersion: number
  /** Absent when its cache cannot leave it. */
  readonly kv?: KvCache
  /** Absent when it computes gradients only with their advantage. */
  readonly held?: HeldGradients
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
  /** Adds this batch's gradient to the accumulator. @throws GyreError E_TRAINER_NONFINITE, E_TRAINER_RANGE. */
  forwardBackward(batch: MicroBatch, objective: Objective): Promise<ForwardBackwardResult>
  zeroGradients(): Promise<void>
  /** A copy, [parameterCount + 1]. Does not wait for a forwardBackward that runs, which then is not part of it. */
  exportGradients(): Promise<GradientSums>
  /** Adds the gradients of other cells, all or none. @throws GyreError E_TRAINER_RANGE. */
  addGradients(gradients: readonly GradientSums[]): Promise<void>
  /** One AdamW update from the accumulator, which is then zero. Does not change policyVersion. */
  optimizerStep(params: OptimizerParams): Promise<{ readonly gradientNorm: number }>
  /** One consistent copy, [parameterCount]. Waits for changes of the weights, never for a forwardBackward. */
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
  /**
   * Computes the gradient of a micro-step before the advantage of its execution is known, and keeps it aside in the
   * cell under `key`: see HeldGradients, whose errors it has.
   */
  holdGradient?(epoch: number, key: string, batch: MicroBatch, objective: Objective): Promise<HeldResult>
  /** Adds a held gradient, scaled, to the accumulator. `key` is that of the micro-step: another delivery counts once. */
  applyHeld?(epoch: number, key: string, held: string, scale: number): Promise<void>
  /** All when no keys are given. */
  dropHeld?(epoch: number, held?: readonly string[]): Promise<void>
  /** Pulls the gradients of other cells and adds them, all or none. */
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
