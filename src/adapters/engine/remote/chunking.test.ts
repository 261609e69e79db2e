import fc from 'fast-check'
import { expect, test } from 'vitest'
import { connectedSglang, connectedVllm } from '../../../../test/support/servers/connected.ts'
import type { Connected } from '../../../../test/support/servers/connected.ts'
import type { BaseOptions } from '../../../../test/support/servers/base-server.ts'
import { collectEvents } from '../../../ports/engine.contract.ts'

const PROMPT = [3, 1, 4, 15]
const SAMPLING = { maxTokens: 7 }
const changes = { weightVersion: 'v1', changesAt: { token: 3, version: 'v2' } }

const SHAPES: readonly (readonly [name: string, start: (options: BaseOptions) => Promise<Connected>])[] = [
  ...(['cumulative', 'delta', 'mixed'] as const).map(
    (shape) =>
      [`SGLang, ${shape}`, async (options: BaseOptions) => connectedSglang({ shape, ...changes, ...options })] as const,
  ),
  ['SGLang, CR LF', async (options) => connectedSglang({ lineEnd: '\r\n', ...options })],
  ['vLLM, tokens', async (options) => connectedVllm({ ...changes, ...options })],
  ['vLLM, tokens, CR LF', async (options) => connectedVllm({ lineEnd: '\r\n', chunkTokens: 2, ...options })],
  ['vLLM, old', async (options) => connectedVllm({ isOld: true, ...options })],
  ['vLLM, completions', async (options) => connectedVllm({ isScaleOut: false, ...options })],
]

/** Every piece is an HTTP chunk of its own; the client reads it alone or with those that follow at once. */
function cutBy(sizes: readonly number[]): (bytes: Buffer) => Buffer[] {
  let i = 0
  return (bytes) => {
    const pieces: Buffer[] = []
    for (let at = 0; at < bytes.length;) {
      const size = sizes[i++ % sizes.length] as number
      pieces.push(bytes.subarray(at, at + size))
      at += size
    }
    return pieces
  }
}

test.each(SHAPES)('%s: the same events, however the bytes are cut', async (_, start) => {
  await using rig = await start({})
  const whole = await collectEvents(rig.engine, PROMPT, SAMPLING)
  expect(whole.error).toBeUndefined()
  const sizes = fc.array(fc.integer({ min: 1, max: 97 }), { minLength: 1, maxLength: 12 })
  await fc.assert(
    fc.asyncProperty(sizes, async (cuts) => {
      Object.assign(rig.server.options, { cut: cutBy(cuts) })
      expect(await collectEvents(rig.engine, PROMPT, SAMPLING)).toEqual(whole)
    }),
    { numRuns: 8 },
  )
})
