/** @file What a remote engine's failures mean to the gateway: go on elsewhere, make room, or give up. */
import { GyreError, errorText } from '../../../core/errors.ts'

/** Longest piece of a server's own words that goes into a message. [characters] */
const MAX_WORDS = 300
/** How servers say that a prompt does not fit. */
const OVERLONG =
  /(?:context|model) length|max(?:imum)?[_ ](?:model[_ ]len|context)|longer than the max|too long|exceeds? the (?:model|max)/i

type EngineCode = `E_ENGINE_${Uppercase<string>}`

function engineError(code: EngineCode, message: string, retryable: boolean, cause?: unknown, details = {}): GyreError {
  return new GyreError(message, { boundary: 'engine', code, retryable, cause, details })
}

export function unreachable(where: string, cause: unknown): GyreError {
  return engineError('E_ENGINE_UNREACHABLE', `lost the connection to ${where}: ${errorText(cause)}`, true, cause)
}

export function cancelled(where: string, cause: unknown): GyreError {
  const message = `the generation on ${where} was cancelled: go on from its tokens or drop it`
  return engineError('E_ENGINE_CANCELLED', message, true, cause)
}

export function closed(where: string): GyreError {
  return engineError('E_ENGINE_CLOSED', `the connection to ${where} was closed by gyre`, true)
}

export function silent(where: string, ms: number): GyreError {
  return engineError('E_ENGINE_TIMEOUT', `${where} said nothing for ${ms} ms`, true)
}

/** The server ended a generation that it had not finished: it was aborted there, or restarted. */
export function unfinished(where: string, how: string): GyreError {
  return engineError('E_ENGINE_UNFINISHED', `${where} ended a generation without finishing it: ${how}`, true)
}

/** The server's answer is not what its protocol says. Asking again elsewhere may help; the same server will repeat it. */
export function malformed(where: string, what: string): GyreError {
  return engineError('E_ENGINE_PROTOCOL', `${where}: ${what}`, true)
}

/** Asked for a generation while it cannot be told which weights would sample it. */
export function takesNoRequests(where: string, why: string): GyreError {
  return engineError('E_ENGINE_NOT_ADMITTING', `${where} takes no generation: ${why}`, true)
}

/** Somebody else changed its weights, or it was started again. */
export function foreignWeights(where: string, found: string, expected: number): GyreError {
  const message = `${where} serves weights it calls "${found}", not those of policy version ${expected} that it was given`
  return engineError('E_ENGINE_WEIGHTS', message, true)
}

/** It did not load what it was told to. */
export function notLoaded(where: string, folder: string, words: string): GyreError {
  const hint = 'it must see this folder under the same path, and serve a model of the same shape'
  return engineError(
    'E_ENGINE_WEIGHTS',
    `${where} did not load ${folder}: ${words.trim().slice(0, MAX_WORDS)} (${hint})`,
    true,
  )
}

export function badOption(message: string): GyreError {
  return engineError('E_ENGINE_OPTION', message, false)
}

export function badRequest(message: string): GyreError {
  return engineError('E_ENGINE_REQUEST', message, false)
}

/** The words are those of the gateway: clients recognize a full context by them. */
export function overlong(promptTokens: number, maxContext: number): GyreError {
  const message =
    `prompt is too long: ${promptTokens} tokens > ${maxContext - 1} maximum ` +
    `(this model's maximum context length is ${maxContext} tokens)`
  return engineError('E_ENGINE_OVERLONG', message, false, undefined, { promptTokens, maxContext })
}

/** @param missing what a training run needs and the server does not give. @param mend how to start it so that it does. */
export function notUsable(where: string, missing: string, mend: string, cause?: unknown): GyreError {
  return engineError('E_ENGINE_PROBE', `${where} cannot be used: ${missing}. ${mend}`, false, cause, { missing })
}

/** An HTTP answer that is no success. */
export function fromStatus(where: string, status: number, words: string): GyreError {
  const said = words.trim().slice(0, MAX_WORDS)
  const message = `${where} answered ${status}${said === '' ? '' : `: ${said}`}`
  const details = { status }
  if (status === 401 || status === 403) {
    const hint = 'give the key the server was started with'
    return engineError('E_ENGINE_UNAUTHORIZED', `${message}. ${hint}`, false, undefined, details)
  }
  // 429 and 503 are a server that is busy, loading, pausing or scaling: it says so and lives.
  if (status === 429 || status === 503) return engineError('E_ENGINE_NOT_ADMITTING', message, true, undefined, details)
  if (status >= 500 || status === 408 || status === 425) {
    return engineError('E_ENGINE_UNREACHABLE', message, true, undefined, details)
  }
  const isOverlong = status === 413 || OVERLONG.test(said)
  return engineError(isOverlong ? 'E_ENGINE_OVERLONG' : 'E_ENGINE_REQUEST', message, false, undefined, details)
}

/** An error object that came as data: `{message, code}`, or words alone. Without a code the server itself failed. */
export function fromErrorData(where: string, error: unknown): GyreError {
  if (typeof error !== 'object' || error === null) return fromStatus(where, 500, String(error))
  const { message, code } = error as { message?: unknown; code?: unknown }
  const status = typeof code === 'number' && code >= 400 && code < 600 ? code : 500
  return fromStatus(where, status, typeof message === 'string' ? message : JSON.stringify(error))
}
