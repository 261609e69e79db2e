/** @file Errors across the cell protocol: the same code, boundary and message on both sides. */
import { z } from 'zod'
import { GyreError, errorText } from '../core/errors.ts'
import type { Boundary } from '../core/errors.ts'

const BOUNDARIES = [
  'cell',
  'config',
  'engine',
  'gateway',
  'harness',
  'sandbox',
  'scorer',
  'store',
  'task',
  'trainer',
  'transfer',
  'wire',
] as const satisfies readonly Boundary[]

const wireErrorSchema = z.object({
  code: z.string().regex(/^E_[A-Z0-9_]+$/),
  boundary: z.enum(BOUNDARIES).catch('cell'),
  message: z.string(),
  retryable: z.boolean(),
  details: z.record(z.string(), z.unknown()),
})
export type WireError = z.infer<typeof wireErrorSchema>

const STATUS: Readonly<Record<string, number>> = {
  E_CELL_REQUEST: 400,
  E_CELL_UNAUTHORIZED: 401,
  E_CELL_UNKNOWN_VERB: 404,
  E_CELL_PROTOCOL_VERSION: 404,
  E_CELL_FENCED: 409,
  E_CELL_NOT_TRAINING: 409,
  E_CELL_TOO_LARGE: 413,
  E_CELL_KEY_CONFLICT: 422,
  E_CELL_NOT_ADMITTING: 503,
  E_CELL_TIMEOUT: 504,
}

/** HTTP status that goes with an error; 500 for a failure inside the engine. */
export const statusOf = (code: string): number => STATUS[code] ?? 500

/** What crosses the wire. An error that is not a GyreError becomes E_CELL_INTERNAL. */
export function toWireError(error: unknown): WireError {
  if (error instanceof GyreError) {
    const { code, boundary, message, retryable, details } = error
    return { code, boundary, message: error.cause === undefined ? message : errorText(error), retryable, details }
  }
  return {
    code: 'E_CELL_INTERNAL',
    boundary: 'cell',
    message: `the cell failed unexpectedly: ${errorText(error)}`,
    retryable: false,
    details: {},
  }
}

/** Rebuilds the error of the other side. */
export function fromWireError(json: unknown): GyreError {
  const parsed = wireErrorSchema.safeParse(json)
  if (!parsed.success) {
    return new GyreError(`the cell answered with something that is not an error object: ${JSON.stringify(json)}`, {
      boundary: 'cell',
      code: 'E_CELL_PROTOCOL',
    })
  }
  const { code, boundary, message, retryable, details } = parsed.data
  return new GyreError(message, { boundary, code: code as `E_${Uppercase<string>}`, retryable, details })
}

/** A request that does not follow the protocol. */
export const requestError = (message: string): GyreError =>
  new GyreError(message, { boundary: 'cell', code: 'E_CELL_REQUEST' })
