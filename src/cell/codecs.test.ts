import fc from 'fast-check'
import { expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import { CROSS_ENTROPY, demonstration } from '../ports/cell.contract.ts'
import type { GenerateEvent } from '../ports/engine.ts'
import { decodeFrame, encodeFrame, float32Of, int32Of } from './frame.ts'
import { decodeEvent, decodeGenerate, encodeEvent, encodeFailure, encodeGenerate } from './generate-codec.ts'
import { float32Text, realFrom, realToJson } from './reals.ts'
import { decodeMicroResult, decodeMicroStep, encodeMicroResult, encodeMicroStep } from './training-codec.ts'
import { fromWireError, toWireError } from './wire-errors.ts'

/** Every float32 there is: any 32 bits. */
const float32 = fc.integer({ min: 0, max: 0xffffffff }).map((bits) => new Float32Array(Uint32Array.of(bits).buffer)[0]!)
const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 })
const line = (event: GenerateEvent): string => encodeEvent(event).trimEnd()

test('any float32 comes back from its text with the same bits', () => {
  fc.assert(
    fc.property(float32, (value) => {
      const back = Math.fround(realFrom(JSON.parse(float32Text(value)))!)
      expect(Object.is(back, value)).toBe(true)
    }),
    { numRuns: 20_000 },
  )
})

test('the edges of float32 come back exactly: NaN, infinities, both zeros, least and largest', () => {
  const edges = [Number.NaN, Infinity, -Infinity, 0, -0, 2 ** -149, -(2 ** -149), 2 ** -126, (2 - 2 ** -23) * 2 ** 127]
  for (const value of edges) {
    expect(Object.is(Math.fround(realFrom(JSON.parse(float32Text(value)))!), value)).toBe(true)
  }
})

test('a float64 result that is not finite survives JSON', () => {
  for (const value of [Number.NaN, Infinity, -Infinity, 0.1]) {
    expect(realFrom(JSON.parse(JSON.stringify(realToJson(value))))).toBe(value)
  }
  expect(realFrom('0.1')).toBeUndefined()
  expect(realFrom(null)).toBeUndefined()
})

test('a token event comes back from its line with the same float32 log-probs, NaN included', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(), float32, fc.nat())), (rows) => {
      const event: GenerateEvent = {
        kind: 'tokens',
        tokenIds: rows.map((r) => r[0]),
        logprobs: rows.map((r) => r[1]),
        policyVersions: rows.map((r) => r[2]),
      }
      expect(decodeEvent(line(event))).toEqual(event)
    }),
  )
})

test('the end of a generation, an empty line and a failure are read as what they are', () => {
  const end: GenerateEvent = { kind: 'end', finishReason: 'length', cachedTokens: 7 }
  expect(decodeEvent(line(end))).toEqual(end)
  expect(decodeEvent('')).toBeUndefined()
  const failure = new GyreError('too long', { boundary: 'engine', code: 'E_ENGINE_OVERLONG', details: { tokens: 5 } })
  expect(() => decodeEvent(encodeFailure(toWireError(failure)))).toThrow(failure)
})

test.each(['{', '7', 'null', '{"t":[1],"l":[0],"v":[]}', '{"t":[1.5],"l":[0],"v":[0]}', '{"t":[1],"l":["x"],"v":[0]}'])(
  'the line %s is refused as no event',
  (text) => {
    expect(() => decodeEvent(text)).toThrow(expect.objectContaining({ code: 'E_CELL_PROTOCOL' }))
  },
)

test('a frame comes back with its header and the same bits in its arrays, at any alignment', () => {
  const floats = fc.array(float32).map((a) => Float32Array.from(a))
  const ints = fc.array(int32).map((a) => Int32Array.from(a))
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), floats, ints, fc.nat(7), (text, f, i, shift) => {
      const bytes = Buffer.concat([Buffer.alloc(shift), ...encodeFrame({ text }, { f, i })])
      const frame = decodeFrame(bytes.subarray(shift))
      expect(frame.header).toEqual({ text })
      expect(float32Of(frame, 'f')).toEqual(f)
      expect(int32Of(frame, 'i')).toEqual(i)
    }),
  )
})

test('a frame that is cut, too long or lacks an array is refused with a request error', () => {
  const whole = Buffer.concat(encodeFrame({}, { a: Int32Array.of(1, 2, 3) }))
  const refused = expect.objectContaining({ code: 'E_CELL_REQUEST' })
  for (let cut = 0; cut < whole.length; cut++) expect(() => decodeFrame(whole.subarray(0, cut))).toThrow(refused)
  expect(() => decodeFrame(Buffer.concat([whole, Buffer.alloc(4)]))).toThrow(refused)
  expect(() => int32Of(decodeFrame(whole), 'b')).toThrow(refused)
  expect(() => float32Of(decodeFrame(whole), 'a')).toThrow(refused)
})

test('a micro-step and its result come back as they were', () => {
  const batch = demonstration([1, 2, 3])
  const bytes = Buffer.concat(encodeMicroStep(batch, CROSS_ENTROPY))
  expect(decodeMicroStep(bytes, 4)).toEqual({ batch, objective: CROSS_ENTROPY })
  const result = {
    loss: Number.NaN,
    entropy: 0.25,
    logprobs: Float32Array.of(-1, Number.NaN),
    clippedTokens: 1,
    maskedTokens: 0,
  }
  expect(decodeMicroResult(Buffer.concat(encodeMicroResult(result)))).toEqual(result)
})

test.each([
  ['an id outside the vocabulary', { tokenIds: Int32Array.of(1, 9, 3) }],
  ['a target outside the vocabulary', { targetIds: Int32Array.of(-1, 2) }],
  ['a target row outside the batch', { targetRows: Int32Array.of(0, 3) }],
  ['a subtree end outside the batch', { subtreeEnd: Int32Array.of(3, 4, 3) }],
  ['arrays of unequal length', { targetWeights: Float32Array.of(1) }],
  ['no tokens', { tokenIds: new Int32Array(0) }],
])('a micro-step with %s is refused before a kernel sees it', (_, change) => {
  const bytes = Buffer.concat(encodeMicroStep({ ...demonstration([1, 2, 3]), ...change }, CROSS_ENTROPY))
  expect(() => decodeMicroStep(bytes, 4)).toThrow(expect.objectContaining({ code: 'E_CELL_REQUEST' }))
})

test('a generation request comes back as it was, and ids outside the vocabulary are refused', () => {
  const request = {
    requestId: 'r',
    executionId: executionId('x'),
    promptIds: Int32Array.of(0, 3),
    sampling: { maxTokens: 5, temperature: 0.7, topP: 0.95, topK: 0, stopTokenIds: [2], seed: 4294967295 },
  }
  const bytes = Buffer.concat(encodeGenerate(request))
  expect(decodeGenerate(bytes, 4)).toEqual(request)
  expect(() => decodeGenerate(bytes, 3)).toThrow(expect.objectContaining({ code: 'E_CELL_REQUEST' }))
})

test('an error keeps its code, boundary, message, details and whether to retry', () => {
  const error = new GyreError('the disk is full', {
    boundary: 'store',
    code: 'E_STORE_WRITE',
    retryable: true,
    details: { bytes: 7 },
  })
  expect(fromWireError(JSON.parse(JSON.stringify(toWireError(error))))).toEqual(error)
  expect(toWireError(new TypeError('x is undefined'))).toMatchObject({ code: 'E_CELL_INTERNAL', retryable: false })
  expect(fromWireError('nonsense')).toMatchObject({ code: 'E_CELL_PROTOCOL' })
})
