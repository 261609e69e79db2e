import fc from 'fast-check'
import { expect, test } from 'vitest'
import { SseReader } from './sse-reader.ts'

/** Events as the stream has them, in every way a server may write them. */
const anyEvent = fc.record({
  lines: fc.array(
    fc.string({ unit: 'grapheme', maxLength: 12 }).map((s) => s.replaceAll(/[\r\n]/g, '')),
    {
      minLength: 1,
      maxLength: 3,
    },
  ),
  hasSpace: fc.boolean(),
  before: fc.constantFrom('', ': keep-alive', 'event: ping', 'id: 7', 'data-not: 1', ':'),
})
const anyStream = fc.record({
  events: fc.array(anyEvent, { maxLength: 6 }),
  lineEnd: fc.constantFrom('\n', '\r\n', '\r'),
  hasMark: fc.boolean(),
  sizes: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 20 }),
})

function pieces(bytes: Buffer, sizes: readonly number[]): Buffer[] {
  const out: Buffer[] = []
  for (let at = 0, i = 0; at < bytes.length; i++) {
    const size = sizes[i % sizes.length] as number
    out.push(bytes.subarray(at, at + size))
    at += size
  }
  return out
}

test('events come out whole, wherever the bytes are cut', () => {
  fc.assert(
    fc.property(anyStream, ({ events, lineEnd, hasMark, sizes }) => {
      const text = events
        .map(({ lines, hasSpace, before }) => {
          const data = lines.map((line) => `data:${hasSpace || line.startsWith(' ') ? ' ' : ''}${line}${lineEnd}`)
          return `${before === '' ? '' : before + lineEnd}${data.join('')}${lineEnd}`
        })
        .join('')
      const reader = new SseReader(1e6)
      const bytes = Buffer.from((hasMark ? '\uFEFF' : '') + text)
      const got = pieces(bytes, sizes).flatMap((piece) => reader.push(piece))
      expect(got).toEqual(events.map(({ lines }) => lines.join('\n')))
    }),
    { numRuns: 300 },
  )
})

test('an event that never ends is given up before memory is', () => {
  const reader = new SseReader(100)
  expect(() => {
    for (let i = 0; i < 20; i++) reader.push(Buffer.from('data: 0123456789'))
  }).toThrow('longer than 100')
})
