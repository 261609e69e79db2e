/** @file Micro-steps and their results as frames. T tokens, R targets. */
import type { HeldResult } from '../ports/cell.ts'
import type { ForwardBackwardResult, MicroBatch, Objective } from '../training/batch.ts'
import { decodeFrame, encodeFrame, float32Of, type Frame, int32Of } from './frame.ts'
import { objectiveSchema } from './protocol.ts'
import { realFrom, realToJson } from './reals.ts'
import { requestError } from './wire-errors.ts'

export function encodeMicroStep(batch: MicroBatch, objective: Objective): Uint8Array[] {
  const { tokenIds, positions, subtreeEnd, targetRows, targetIds } = batch
  const { targetWeights, targetAdvantages, targetBehaviorLogprobs } = batch
  return encodeFrame(
    { objective },
    {
      tokenIds,
      positions,
      subtreeEnd,
      targetRows,
      targetIds,
      targetWeights,
      targetAdvantages,
      targetBehaviorLogprobs,
    },
  )
}

/**
 * Reads a micro-step and checks every index, because the kernels behind it do not.
 * @throws GyreError E_CELL_REQUEST
 */
export function decodeMicroStep(
  bytes: Uint8Array,
  vocabSize: number,
): { readonly batch: MicroBatch; readonly objective: Objective } {
  const frame = decodeFrame(bytes)
  const objective = objectiveSchema.safeParse(frame.header['objective'])
  if (!objective.success) throw requestError(`the micro-step's objective is not valid: ${objective.error.message}`)
  const batch: MicroBatch = {
    tokenIds: int32Of(frame, 'tokenIds'),
    positions: int32Of(frame, 'positions'),
    subtreeEnd: int32Of(frame, 'subtreeEnd'),
    targetRows: int32Of(frame, 'targetRows'),
    targetIds: int32Of(frame, 'targetIds'),
    targetWeights: float32Of(frame, 'targetWeights'),
    targetAdvantages: float32Of(frame, 'targetAdvantages'),
    targetBehaviorLogprobs: float32Of(frame, 'targetBehaviorLogprobs'),
  }
  checkMicroBatch(batch, vocabSize)
  return { batch, objective: objective.data }
}

function checkMicroBatch(batch: MicroBatch, vocabSize: number): void {
  const T = batch.tokenIds.length
  const R = batch.targetIds.length
  if (T === 0) throw requestError('the micro-step has no tokens')
  sameLength(T, 'tokenIds', { positions: batch.positions, subtreeEnd: batch.subtreeEnd })
  sameLength(R, 'targetIds', {
    targetRows: batch.targetRows,
    targetWeights: batch.targetWeights,
    targetAdvantages: batch.targetAdvantages,
    targetBehaviorLogprobs: batch.targetBehaviorLogprobs,
  })
  inRange('tokenIds', batch.tokenIds, vocabSize)
  inRange('targetIds', batch.targetIds, vocabSize)
  inRange('targetRows', batch.targetRows, T)
  inRange('positions', batch.positions, T)
  inRange('subtreeEnd', batch.subtreeEnd, T + 1)
}

function sameLength(length: number, of: string, arrays: Readonly<Record<string, { readonly length: number }>>): void {
  for (const [name, array] of Object.entries(arrays)) {
    if (array.length === length) continue
    throw requestError(`${name} has ${array.length} entries where ${of} has ${length}`)
  }
}

function inRange(name: string, values: Int32Array, bound: number): void {
  const at = values.findIndex((v) => v < 0 || v >= bound)
  if (at >= 0) throw requestError(`${name}[${at}] is ${values[at]}, outside 0..${bound - 1}`)
}

export function encodeMicroResult(result: ForwardBackwardResult | HeldResult): Uint8Array[] {
  const { loss, entropy, logprobs, ...counts } = result
  return encodeFrame({ loss: realToJson(loss), entropy: realToJson(entropy), ...counts }, { logprobs })
}

/** @throws GyreError E_CELL_REQUEST */
export function decodeMicroResult(bytes: Uint8Array): ForwardBackwardResult {
  return resultOf(decodeFrame(bytes))
}

/** @throws GyreError E_CELL_REQUEST */
export function decodeHeldResult(bytes: Uint8Array): HeldResult {
  const frame = decodeFrame(bytes)
  return { ...resultOf(frame), outsideTokens: realOf(frame, 'outsideTokens') }
}

function resultOf(frame: Frame): ForwardBackwardResult {
  return {
    loss: realOf(frame, 'loss'),
    entropy: realOf(frame, 'entropy'),
    logprobs: float32Of(frame, 'logprobs'),
    clippedTokens: realOf(frame, 'clippedTokens'),
    maskedTokens: realOf(frame, 'maskedTokens'),
  }
}

function realOf(frame: Frame, name: string): number {
  const value = realFrom(frame.header[name])
  if (value === undefined) throw requestError(`the result of a micro-step has no number "${name}"`)
  return value
}
