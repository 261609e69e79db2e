/** @file One generation: the request as a frame, the events as lines of JSON. */
import { GyreError } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import type { GenerateEvent, GenerateRequest } from '../ports/engine.ts'
import { decodeFrame, encodeFrame, int32Of } from './frame.ts'
import { generateSchema } from './protocol.ts'
import { float32Text, realFrom } from './reals.ts'
import { fromWireError, requestError } from './wire-errors.ts'
import type { WireError } from './wire-errors.ts'

export function encodeGenerate(request: GenerateRequest): Uint8Array[] {
  const { requestId, executionId: execution, sampling, promptIds } = request
  return encodeFrame({ requestId, executionId: execution, sampling }, { promptIds })
}

/** @throws GyreError E_CELL_REQUEST */
export function decodeGenerate(bytes: Uint8Array, vocabSize: number): GenerateRequest {
  const frame = decodeFrame(bytes)
  const parsed = generateSchema.safeParse(frame.header)
  if (!parsed.success) throw requestError(`the generation request is not valid: ${parsed.error.message}`)
  const promptIds = int32Of(frame, 'promptIds')
  if (promptIds.length === 0) throw requestError('the generation request has no prompt ids')
  const at = promptIds.findIndex((id) => id < 0 || id >= vocabSize)
  if (at >= 0) throw requestError(`promptIds[${at}] is ${promptIds[at]}, outside 0..${vocabSize - 1}`)
  return { ...parsed.data, executionId: executionId(parsed.data.executionId), promptIds }
}

/** One event as one line, with its line feed. Log-probs are rounded to float32. */
export function encodeEvent(event: GenerateEvent): string {
  if (event.kind === 'end') {
    return `{"end":{"finishReason":"${event.finishReason}","cachedTokens":${event.cachedTokens}}}\n`
  }
  const logprobs = event.logprobs.map(float32Text).join(',')
  return `{"t":[${event.tokenIds.join(',')}],"l":[${logprobs}],"v":[${event.policyVersions.join(',')}]}\n`
}

/** The last line of a generation that failed. */
export const encodeFailure = (error: WireError): string => `${JSON.stringify({ error })}\n`

/**
 * Reads one line; undefined for an empty one, which only says that the cell is alive.
 * @throws GyreError the cell's own error when the line carries one, E_CELL_PROTOCOL when it is not an event.
 */
export function decodeEvent(line: string): GenerateEvent | undefined {
  if (line === '') return undefined
  const json = parseLine(line)
  if ('error' in json) throw fromWireError(json['error'])
  if ('end' in json) return decodeEnd(json['end'], line)
  const { t: tokenIds, l, v: policyVersions } = json
  if (!isIntegers(tokenIds) || !isIntegers(policyVersions) || !Array.isArray(l)) throw badLine(line)
  const logprobs = l.map((value) => Math.fround(realFrom(value) ?? throwBad(line)))
  if (logprobs.length !== tokenIds.length || policyVersions.length !== tokenIds.length) throw badLine(line)
  return { kind: 'tokens', tokenIds, logprobs, policyVersions }
}

function parseLine(line: string): Record<string, unknown> {
  let json: unknown
  try {
    json = JSON.parse(line)
  } catch {
    throw badLine(line)
  }
  if (typeof json !== 'object' || json === null) throw badLine(line)
  return json as Record<string, unknown>
}

function decodeEnd(json: unknown, line: string): GenerateEvent {
  const { finishReason, cachedTokens } = (json ?? {}) as Record<string, unknown>
  if ((finishReason !== 'stop' && finishReason !== 'length') || !Number.isInteger(cachedTokens)) throw badLine(line)
  return { kind: 'end', finishReason, cachedTokens: cachedTokens as number }
}

const isIntegers = (value: unknown): value is number[] => Array.isArray(value) && value.every(Number.isInteger)

const badLine = (line: string): GyreError =>
  new GyreError(`the cell sent a line that is no generation event: ${line.slice(0, 200)}`, {
    boundary: 'cell',
    code: 'E_CELL_PROTOCOL',
  })

function throwBad(line: string): never {
  throw badLine(line)
}
