import fc from 'fast-check'
import { expect, test } from 'vitest'
import { toolCall, turn } from '../../test/support/trees.ts'
import type { AssistantItem, Json } from '../core/items.ts'
import { itemDigest, turnKey } from './canonical.ts'
import { isEcho } from './echo.ts'

/** How a harness writes JSON. */
interface Writer {
  readonly keys: 'as-is' | 'sorted' | 'reversed'
  readonly blank: '' | ' ' | '\n\t'
  readonly escapes: 'none' | 'unicode' | 'slash'
  readonly number: 'plain' | 'fraction' | 'exponent'
}

const writers: fc.Arbitrary<Writer> = fc.record({
  keys: fc.constantFrom('as-is', 'sorted', 'reversed'),
  blank: fc.constantFrom('', ' ', '\n\t'),
  escapes: fc.constantFrom('none', 'unicode', 'slash'),
  number: fc.constantFrom('plain', 'fraction', 'exponent'),
})

function writtenString(value: string, { escapes }: Writer): string {
  const text = JSON.stringify(value)
  if (escapes === 'slash') return text.replaceAll('/', String.raw`\/`)
  if (escapes === 'none') return text
  return text.replaceAll(/[^ -~]/g, (unit) => String.raw`\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

function writtenNumber(value: number, { number }: Writer): string {
  const text = JSON.stringify(value)
  if (text.includes('e') || number === 'plain') return text
  if (number === 'exponent') return `${text}E+0`
  return text.includes('.') ? `${text}00` : `${text}.0`
}

function written(value: Json, writer: Writer): string {
  if (typeof value === 'string') return writtenString(value, writer)
  if (typeof value === 'number') return writtenNumber(value, writer)
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  const { blank } = writer
  if (Array.isArray(value)) {
    return `[${blank}${(value as Json[]).map((entry) => written(entry, writer)).join(`${blank},${blank}`)}]`
  }
  const object = value as Readonly<Record<string, Json>>
  const keys = Object.keys(object)
  if (writer.keys === 'sorted') keys.sort()
  if (writer.keys === 'reversed') keys.reverse()
  const fields = keys.map(
    (key) => `${writtenString(key, writer)}${blank}:${blank}${written(object[key] ?? null, writer)}`,
  )
  return `{${fields.join(`,${blank}`)}${blank}}`
}

/** Characters that writers treat differently, and numbers a double holds. */
const shortText = fc.string({
  unit: fc.constantFrom('a', 'B', '/', '"', '\\', 'é', '😀', ' ', '\n', '0'),
  maxLength: 8,
})
const key = fc.oneof(fc.constantFrom('command', '10', '9', '__proto__', 'path'), shortText)
const scalar = fc.oneof(
  shortText,
  fc.integer(),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((n) => (n === 0 ? 0 : n)),
  fc.boolean(),
  fc.constant(null),
)
const json = fc.letrec<{ value: Json; object: Json }>((tie) => ({
  value: fc.oneof({ depthSize: 'small' }, scalar, fc.array(tie('value'), { maxLength: 4 }), tie('object')),
  object: fc.dictionary(key, tie('value'), { maxKeys: 5, noNullPrototype: true }) as fc.Arbitrary<Json>,
})).object

const oneCall = (args: string, id: string): AssistantItem => turn('Look.', [toolCall(id, 'bash', args)])

const numbered = (value: string): AssistantItem => oneCall(`{"n":${value}}`, 'call_1')

test('any arguments, written again by any harness, are an echo under the same id and under another', () => {
  fc.assert(
    fc.property(json, writers, writers, fc.constantFrom('call_1', 'other'), (args, ours, theirs, id) => {
      const served = oneCall(written(args, ours), 'call_1')
      const echo = oneCall(written(args, theirs), id)
      expect(isEcho(served, echo)).toBe(true)
      expect(itemDigest(echo)).toBe(itemDigest(served))
      expect(turnKey(echo)).toBe(turnKey(served))
    }),
    { numRuns: 400 },
  )
})

/** Every place of a scalar in the value, as a path. */
function leaves(value: Json, path: readonly (string | number)[] = []): readonly (readonly (string | number)[])[] {
  if (value === null || typeof value !== 'object') return [path]
  if (Array.isArray(value)) return (value as Json[]).flatMap((entry, i) => leaves(entry, [...path, i]))
  return Object.entries(value as Readonly<Record<string, Json>>).flatMap(([name, entry]) =>
    leaves(entry, [...path, name]),
  )
}

function changedAt(value: Json, path: readonly (string | number)[]): Json {
  const [head, ...rest] = path
  if (head === undefined) return typeof value === 'string' ? `${value}!` : 'changed'
  if (Array.isArray(value)) return (value as Json[]).map((entry, i) => (i === head ? changedAt(entry, rest) : entry))
  return Object.fromEntries(
    Object.entries(value as Readonly<Record<string, Json>>).map(([name, entry]) => [
      name,
      name === head ? changedAt(entry, rest) : entry,
    ]),
  )
}

test('one changed value anywhere is no echo, whatever else was normalised', () => {
  fc.assert(
    fc.property(json, writers, writers, fc.nat(), fc.boolean(), (args, ours, theirs, at, sameId) => {
      const places = leaves(args)
      fc.pre(places.length > 0)
      const changed = changedAt(args, places[at % places.length] ?? [])
      const echo = oneCall(written(changed, theirs), sameId ? 'call_1' : 'other')
      const served = oneCall(written(args, ours), 'call_1')
      expect(isEcho(served, echo)).toBe(false)
      expect(itemDigest(echo)).not.toBe(itemDigest(served))
    }),
    { numRuns: 400 },
  )
})

const calls = fc.array(fc.record({ name: fc.constantFrom('read', 'bash'), args: json }), { minLength: 1, maxLength: 4 })

type Change = (served: AssistantItem, at: number) => AssistantItem
const changes: readonly (readonly [string, Change])[] = [
  ['a call less', (served, at) => ({ ...served, toolCalls: served.toolCalls.filter((_, i) => i !== at) })],
  ['a call more', (served) => ({ ...served, toolCalls: [...served.toolCalls, toolCall('new', 'bash', '{}')] })],
  [
    'another name',
    (served, at) => ({
      ...served,
      toolCalls: served.toolCalls.map((call, i) => (i === at ? { ...call, name: `${call.name}2` } : call)),
    }),
  ],
  ['other words', (served) => ({ ...served, text: `${served.text}?` })],
  ['words cut', (served) => ({ ...served, text: served.text.slice(0, -1) })],
  ['other thoughts', (served) => ({ ...served, thinking: 'No.' })],
]

test.each(changes)('%s is no echo, whatever else was normalised', (_, change) => {
  fc.assert(
    fc.property(calls, writers, writers, fc.nat(3), (list, ours, theirs, at) => {
      const turnOf = (writer: Writer): AssistantItem =>
        turn(
          'Look.',
          list.map(({ name, args }, i) => toolCall(`call_${i}`, name, written(args, writer))),
          'Hm.',
        )
      expect(isEcho(turnOf(ours), turnOf(theirs))).toBe(true)
      expect(isEcho(turnOf(ours), change(turnOf(theirs), at % list.length))).toBe(false)
    }),
    { numRuns: 100 },
  )
})

/** The integer that JSON text of a number stands for, `1.5e+21` included. */
function integerOf(text: string): bigint {
  const [mantissa = '', exponent = '0'] = text.split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  return BigInt(whole + fraction) * 10n ** BigInt(Number(exponent) - fraction.length)
}

test('integers are compared by all of their digits, or as what JavaScript makes of the served one', () => {
  const digits = fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n })
  fc.assert(
    fc.property(digits, fc.bigInt({ min: 1n, max: 10n ** 12n }), (n, by) => {
      const [served, other] = [`${n}`, `${n + by}`]
      const rounded = JSON.stringify(Number(served))
      expect(isEcho(numbered(served), numbered(served))).toBe(true)
      expect(isEcho(numbered(served), numbered(rounded))).toBe(true)
      expect(isEcho(numbered(served), numbered(other))).toBe(integerOf(rounded) === n + by)
    }),
  )
})
