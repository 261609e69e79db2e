/** Where a failure crossed our code. The boundary decides what the run loop does about it. */
export type Boundary =
  | 'cell'
  | 'config'
  | 'engine'
  | 'gateway'
  | 'harness'
  | 'sandbox'
  | 'scorer'
  | 'store'
  | 'task'
  | 'trainer'
  | 'transfer'
  | 'wire'

export interface GyreErrorOptions {
  readonly boundary: Boundary
  /** Stable, documented in docs/errors.md: `E_` + boundary + what happened. */
  readonly code: `E_${Uppercase<string>}`
  /** True when the same call may succeed later or elsewhere without a change by the user. */
  readonly retryable?: boolean
  readonly cause?: unknown
  /** Machine-readable facts about the failure; never a secret. */
  readonly details?: Readonly<Record<string, unknown>>
}

/** Base of every error this package throws on purpose. Anything else is a bug. */
export class GyreError extends Error {
  override readonly name: string = 'GyreError'
  readonly boundary: Boundary
  readonly code: string
  readonly retryable: boolean
  readonly details: Readonly<Record<string, unknown>>

  constructor(message: string, options: GyreErrorOptions) {
    super(message, { cause: options.cause })
    this.boundary = options.boundary
    this.code = options.code
    this.retryable = options.retryable ?? false
    this.details = options.details ?? {}
  }
}

/** True for a GyreError with this code. */
export function hasCode(error: unknown, code: `E_${Uppercase<string>}`): error is GyreError {
  return error instanceof GyreError && error.code === code
}

/** A broken promise of our own code. It is a bug, never bad input. */
export class InvariantError extends Error {
  override readonly name: string = 'InvariantError'
}

/** @throws InvariantError when `condition` is false. */
export function invariant(condition: unknown, what: string): asserts condition {
  if (condition !== true && !condition) throw new InvariantError(`broken invariant: ${what}`)
}

/** The text of anything thrown, with the chain of causes. */
export function errorText(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause === undefined ? error.message : `${error.message}: ${errorText(error.cause)}`
}
