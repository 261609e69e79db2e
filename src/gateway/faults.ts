/** @file Errors of ours as faults a dialect can phrase, and which engine errors a harness never sees. */
import { GyreError, errorText } from '../core/errors.ts'
import type { Fault, FaultKind } from '../wire/dialect.ts'

const KIND_BY_CODE: Readonly<Record<string, FaultKind>> = {
  E_WIRE_MALFORMED: 'malformed',
  E_WIRE_UNSUPPORTED: 'unsupported',
  E_WIRE_TOOLS_MOVED: 'unsupported',
  E_ENGINE_OVERLONG: 'overlong',
  E_GATEWAY_UNAUTHORIZED: 'unauthorized',
  E_GATEWAY_UNKNOWN_EXECUTION: 'not-found',
  E_GATEWAY_UNKNOWN_ROUTE: 'not-found',
  E_GATEWAY_METHOD: 'method',
  E_GATEWAY_BODY_TOO_LARGE: 'too-large',
  E_GATEWAY_CALL_LIMIT: 'call-limit',
  E_GATEWAY_CLOSED: 'gone',
}

/** Engine failures that a new route or another try mends. A generation goes on from its tokens. */
const TRANSIENT_CODES: ReadonlySet<string> = new Set([
  'E_ENGINE_CANCELLED',
  'E_ENGINE_UNREACHABLE',
  'E_ENGINE_NOT_ADMITTING',
  'E_ENGINE_TIMEOUT',
  'E_ENGINE_UNFINISHED',
  'E_CELL_CLOSED',
  'E_CELL_FENCED',
  'E_CELL_NOT_ADMITTING',
  'E_CELL_TIMEOUT',
  'E_CELL_UNREACHABLE',
])

export function isTransient(error: unknown): error is GyreError {
  return error instanceof GyreError && (error.retryable || TRANSIENT_CODES.has(error.code))
}

/** What a harness is told. The text of an unexpected error stays with us: it may hold anything. */
export function faultOf(error: unknown): Fault {
  if (!(error instanceof GyreError)) {
    return { kind: 'internal', code: 'E_GATEWAY_INTERNAL', message: 'the gateway failed; its log says why' }
  }
  const kind = KIND_BY_CODE[error.code] ?? 'internal'
  return { kind, code: error.code, message: kind === 'internal' ? errorText(error) : error.message }
}

export function gatewayError(code: `E_GATEWAY_${Uppercase<string>}`, message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'gateway', code, cause })
}

/** Clients recognize a full context by these words and make room: they are part of the protocol. */
export function overlongError(promptTokens: number, maxContext: number): GyreError {
  return new GyreError(
    `prompt is too long: ${promptTokens} tokens > ${maxContext - 1} maximum ` +
      `(this model's maximum context length is ${maxContext} tokens)`,
    { boundary: 'engine', code: 'E_ENGINE_OVERLONG', details: { promptTokens, maxContext } },
  )
}

export function closedError(executionId: string): GyreError {
  return gatewayError('E_GATEWAY_CLOSED', `execution ${executionId} has ended and takes no further calls`)
}
