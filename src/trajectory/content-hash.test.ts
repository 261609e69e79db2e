import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { result, system, toolCall, tools, turn, user } from '../../test/support/trees.ts'
import type { Item } from '../core/items.ts'
import { itemDigest } from './canonical.ts'
import { ContentHash } from './content-hash.ts'

const digestOf = (...texts: readonly string[]): string => {
  const hash = new ContentHash()
  for (const text of texts) hash.add(text)
  return hash.digest()
}

/** How many bits differ. */
function distance(a: string, b: string): number {
  const bits = (BigInt(`0x${a}`) ^ BigInt(`0x${b}`)).toString(2)
  return bits.replaceAll('0', '').length
}

describe('ContentHash', () => {
  test('no two of 200,000 like texts share 64 of their bits', () => {
    const [first, second] = [new Set<string>(), new Set<string>()]
    for (let i = 0; i < 200_000; i++) {
      const digest = digestOf(`observation ${i}`)
      first.add(digest.slice(0, 16))
      second.add(digest.slice(16))
    }
    expect([first.size, second.size]).toEqual([200_000, 200_000])
  })

  test('every unit counts, wherever it stands, in either half of its code', () => {
    const base = 'a'.repeat(67)
    const seen = new Set([digestOf(base)])
    for (let i = 0; i < base.length; i++) {
      for (const other of ['b', '\u0161', ' ']) seen.add(digestOf(base.slice(0, i) + other + base.slice(i + 1)))
    }
    expect(seen.size).toBe(1 + 67 * 3)
  })

  test('a flipped unit changes about half of the bits', () => {
    const changed = Array.from({ length: 500 }, (_, i) =>
      distance(digestOf(`a${i}`.padEnd(40)), digestOf(`b${i}`.padEnd(40))),
    )
    const mean = changed.reduce((sum, n) => sum + n, 0) / changed.length
    expect(mean).toBeGreaterThan(62)
    expect(mean).toBeLessThan(66)
    expect(Math.min(...changed)).toBeGreaterThan(30)
  })

  test('lists of texts do not run together', () => {
    const lists = [['ab', 'c'], ['a', 'bc'], ['abc'], ['abc', ''], ['', 'abc'], ['a', 'b', 'c'], [], [''], ['', '']]
    const padded = [['abc '], ['abc  '], ['abc\0'], ['abcdefgh'], ['abcdefgh '], ['abcdefgh', ' ']]
    expect(new Set([...lists, ...padded].map((list) => digestOf(...list))).size).toBe(lists.length + padded.length)
  })

  test('equal texts have equal digests however they were put together', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 60 }), fc.nat(60), (text, at) => {
        expect(digestOf(text.slice(0, at) + text.slice(at))).toBe(digestOf(text))
        expect(digestOf(text)).toMatch(/^[0-9a-f]{32}$/)
      }),
    )
  })
})

describe('itemDigest', () => {
  const same: readonly (readonly [string, Item, Item])[] = [
    ['blanks around the words of a turn', turn('Done. \n'), turn('Done.')],
    ['thinking', turn('Done.', [], 'why'), turn('Done.')],
    ['ids of calls', turn('', [toolCall('a', 'ls', '{}')]), turn('', [toolCall('b', 'ls', '')])],
    [
      'order and escapes of arguments',
      turn('', [toolCall('a', 'f', '{"a": 1.0,"b":"\\u00e9"}')]),
      turn('', [toolCall('a', 'f', '{"b":"é","a":1}')]),
    ],
    ['id and name of a tool result', result('a', 'out', 'ls'), result('b', 'out')],
    ['the error mark of a tool result', result('a', 'out'), { ...result('a', 'out'), isError: true }],
    ['a lone surrogate', user('a\ud800b'), user('a\ufffdb')],
  ]
  test.each(same)('%s: not content', (_, a, b) => {
    expect(itemDigest(a)).toBe(itemDigest(b))
  })

  const different: readonly Item[] = [
    user('x'),
    system('x'),
    result('a', 'x'),
    turn('x'),
    user('x '),
    user(' x'),
    tools('x'),
    tools('x', 'y'),
    tools('y', 'x'),
    turn('', [toolCall('a', 'x', '{}')]),
    turn('x', [toolCall('a', 'x', '{}')]),
    turn('x', [toolCall('a', 'x', '{}'), toolCall('b', 'x', '{}')]),
    turn('', [toolCall('a', 'x', '{"n":12345678901234567890}')]),
    turn('', [toolCall('a', 'x', '{"n":12345678901234567891}')]),
    turn('', [toolCall('a', 'x', '{"n":12345678901234567000}')]),
    turn('', [toolCall('a', 'x', '{"n":-0.0}')]),
    turn('', [toolCall('a', 'x', '{"n":0}')]),
    turn('', [toolCall('a', 'x', '{"n":1e999}')]),
    turn('', [toolCall('a', 'x', '{"n":null}')]),
    turn('', [toolCall('a', 'x', '{"n":"0"}')]),
  ]
  test('different content, different digests', () => {
    expect(new Set(different.map(itemDigest)).size).toBe(different.length)
  })
})
