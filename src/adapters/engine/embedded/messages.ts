/** @file What the engine's host and its leading worker thread say to each other. */
import type { ExecutionId } from '../../../core/ids.ts'
import type { KvOffer } from '../../../ports/cell.ts'
import type { SamplingParams } from '../../../ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
import type { GradientSums } from '../../../training/gradient-sums.ts'
import type { Capacity } from '../../../kernels/plan.ts'
import type { ModelShape } from '../../../kernels/shape.ts'
import type { WasmMemory, WasmModule } from '../../../kernels/wasm.ts'

export interface WorkerSetup {
  /** 0 leads. */
  readonly thread: number
  readonly shape: ModelShape
  readonly capacity: Capacity
  readonly module: WasmModule
  readonly memory: WasmMemory
  /** Of a random model, or the folder to load. */
  readonly start: { readonly seed: number } | { readonly folder: string }
  readonly policyVersion: number
}

/** Done in the order they arrive; each is answered by `done` or `failed` with its id. */
export type Command =
  | { readonly kind: 'forward-backward'; readonly batch: MicroBatch; readonly objective: Objective }
  | {
      readonly kind: 'hold-gradient'
      readonly key: string
      readonly batch: MicroBatch
      readonly objective: Objective
    }
  | { readonly kind: 'apply-held'; readonly key: string; readonly scale: number }
  | { readonly kind: 'drop-held'; readonly keys?: readonly string[] }
  | { readonly kind: 'zero-gradients' }
  | { readonly kind: 'add-gradients'; readonly gradients: readonly GradientSums[] }
  | { readonly kind: 'optimizer-step'; readonly params: OptimizerParams }
  | { readonly kind: 'import-weights'; readonly weights: Float32Array; readonly policyVersion: number }
  | { readonly kind: 'set-policy-version'; readonly policyVersion: number }
  | { readonly kind: 'save'; readonly folder: string }
  | { readonly kind: 'load'; readonly folder: string; readonly policyVersion: number }
  | { readonly kind: 'kv'; readonly command: KvCommand }
  | { readonly kind: 'close' }

/** See KvCache and KvArrival. */
export type KvCommand =
  | { readonly kind: 'pin'; readonly executionIds: readonly ExecutionId[] }
  | { readonly kind: 'read'; readonly serial: number; readonly blocks: Int32Array }
  | { readonly kind: 'unpin' }
  | { readonly kind: 'accept'; readonly offer: KvOffer }
  | { readonly kind: 'write'; readonly ticket: number; readonly data: Float32Array }
  | { readonly kind: 'close'; readonly ticket: number }

/** Room kept for blocks on their way; see KvArrival. */
export interface KvRoom {
  /** Names it in `write` and `close`. */
  readonly ticket: number
  readonly wanted: Int32Array
  readonly sequences: readonly { readonly index: number; readonly after: number }[]
}

export type ToWorker =
  | { readonly kind: 'command'; readonly id: number; readonly command: Command }
  | {
      readonly kind: 'generate'
      readonly id: number
      readonly executionId: string
      readonly promptIds: Int32Array
      readonly sampling: SamplingParams
    }
  | { readonly kind: 'cancel'; readonly id: number }

export interface WireError {
  readonly message: string
  /** Set for errors thrown on purpose. */
  readonly boundary?: 'engine' | 'trainer'
  readonly code?: `E_${Uppercase<string>}`
}

/** New tokens of one generation; several steps may be joined. */
export interface TokenChunk {
  readonly id: number
  readonly tokenIds: number[]
  readonly logprobs: number[]
  readonly policyVersions: number[]
  end?: { readonly finishReason: 'stop' | 'length'; readonly cachedTokens: number }
  error?: WireError
}

export type CommandResult =
  | ForwardBackwardResult
  | Float32Array
  | { readonly gradientNorm: number }
  | KvOffer
  | KvRoom
  | undefined

export type FromWorker =
  | { readonly kind: 'ready' }
  | { readonly kind: 'done'; readonly id: number; readonly result: CommandResult }
  | { readonly kind: 'failed'; readonly id: number; readonly error: WireError }
  | { readonly kind: 'tokens'; readonly chunks: readonly TokenChunk[] }
