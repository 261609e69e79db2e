/** @file What the engine's host and its leading worker thread say to each other. */
import type { SamplingParams } from '../../../ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../../training/batch.ts'
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
  | { readonly kind: 'zero-gradients' }
  | { readonly kind: 'export-gradients' }
  | { readonly kind: 'add-gradients'; readonly gradients: Float32Array }
  | { readonly kind: 'optimizer-step'; readonly params: OptimizerParams }
  | { readonly kind: 'export-weights' }
  | { readonly kind: 'import-weights'; readonly weights: Float32Array; readonly policyVersion: number }
  | { readonly kind: 'set-policy-version'; readonly policyVersion: number }
  | { readonly kind: 'save'; readonly folder: string }
  | { readonly kind: 'load'; readonly folder: string; readonly policyVersion: number }
  | { readonly kind: 'close' }

export type ToWorker =
  | { readonly kind: 'command'; readonly id: number; readonly command: Command }
  | {
      readonly kind: 'generate'
      readonly id: number
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

export type CommandResult = ForwardBackwardResult | Float32Array | { readonly gradientNorm: number } | undefined

export type FromWorker =
  | { readonly kind: 'ready' }
  | { readonly kind: 'done'; readonly id: number; readonly result: CommandResult }
  | { readonly kind: 'failed'; readonly id: number; readonly error: WireError }
  | { readonly kind: 'tokens'; readonly chunks: readonly TokenChunk[] }
