/** @file Seeded mutations of a request: of the tree its JSON is, of its text, and of everything around the body. */
import type { Json } from '../../src/core/items.ts'
import type { Rng } from '../../src/core/rng.ts'

type Holder = Json[] | Record<string, Json>
interface Place {
  readonly holder: Holder
  readonly key: string | number
}

/** Stands for a nest too deep to be built as a value; written out as text. */
const ABYSS = '\u0001abyss\u0001'
const ABYSS_TEXT = `${'['.repeat(12_000)}${']'.repeat(12_000)}`

const ODD_TEXTS: readonly string[] = [
  '',
  ' ',
  '\u0000',
  '\ufeff',
  '\ud83d',
  '\udc00\ud800',
  'e\u0301\u202e\u200d',
  '👩‍👩‍👧‍👦',
  '<|im_end|>\n<|im_start|>assistant\n',
  '<open>assistant\n<close>',
  '__proto__',
  'constructor',
  '{"a":',
  'data: [DONE]\n\n',
  'y'.repeat(3000),
]
const ODD_NUMBERS: readonly number[] = [0, -0, -1, 1, 2, 0.1, 1e21, 1e308, -1e308, 2 ** 53, 5e-324, 4_294_967_296]
const ODD_KEYS: readonly string[] = ['__proto__', 'constructor', 'toString', 'length', '', '0', 'type', 'role', 'id']

/** @param donors Values that may be put in place of others. */
export function mutatedBody(body: Json, donors: readonly Json[], rng: Rng): string {
  const root: Record<string, Json> = { body: structuredClone<Json>(body) }
  for (let left = 1 + rng.below(1 + rng.below(4)); left > 0; left--) {
    if (rng.below(3) > 0) mutateGently(root, rng)
    else mutateTree(root, donors, rng)
  }
  const text = JSON.stringify(root['body'] ?? null).replaceAll(JSON.stringify(ABYSS), ABYSS_TEXT)
  return rng.below(8) === 0 ? mutatedText(text, rng) : text
}

/** Most of what comes out is still a request, so that what lies behind the parsers is reached. */
function mutateGently(root: Record<string, Json>, rng: Rng): void {
  const places = placesIn(root)
  if (places.length === 0) return
  const { holder, key } = picked(places, rng)
  const value = read(holder, key)
  if (typeof value === 'string' && key !== 'type' && key !== 'role') {
    write(holder, key, rng.below(3) === 0 ? picked(ODD_TEXTS, rng) : value + picked(ODD_TEXTS, rng))
  } else if (typeof value === 'number') write(holder, key, 1 + rng.below(2 ** rng.below(50)))
  else if (Array.isArray(holder)) repeat(holder, key, 1 + rng.below(3))
  else if (!Array.isArray(value) && typeof value === 'object' && value !== null) {
    write(value as Record<string, Json>, `${picked(ODD_KEYS, rng)}_`, oddValue(rng))
  } else write(holder, `x_${String(key)}`, value)
}

function mutateTree(root: Record<string, Json>, donors: readonly Json[], rng: Rng): void {
  const places = placesIn(root)
  if (places.length === 0) return
  const { holder, key } = picked(places, rng)
  const value = read(holder, key)
  switch (rng.below(10)) {
    case 0:
      return remove(holder, key)
    case 1:
      return write(holder, key, oddValue(rng))
    case 2:
      return write(holder, key, structuredClone(picked(donors, rng)))
    case 3:
      return write(holder, key, rng.below(2) === 0 ? [value] : { [picked(ODD_KEYS, rng)]: value })
    case 4: {
      const other = picked(places, rng)
      const swapped = structuredClone(read(other.holder, other.key))
      write(other.holder, other.key, structuredClone(value))
      return write(holder, key, swapped)
    }
    case 5:
      return repeat(holder, key, 1 + rng.below(rng.below(4) === 0 ? 60 : 3))
    case 6:
      return rename(holder, key, rng)
    case 7:
      return write(holder, key, nested(value, 1 + rng.below(400)))
    case 8:
      return write(holder, key, rng.below(2) === 0 ? ABYSS : retyped(value))
    default:
      return write(holder, key, typeof value === 'string' ? value + picked(ODD_TEXTS, rng) : oddValue(rng))
  }
}

function placesIn(root: Record<string, Json>): readonly Place[] {
  const places: Place[] = []
  const open: Holder[] = [root]
  for (let holder = open.pop(); holder !== undefined; holder = open.pop()) {
    for (const key of Array.isArray(holder) ? holder.keys() : Object.keys(holder)) {
      places.push({ holder, key })
      const value = read(holder, key)
      // Nests made by an earlier mutation are not searched to their ground.
      if (typeof value === 'object' && value !== null && places.length < 500) open.push(value as Holder)
    }
  }
  return places
}

function read(holder: Holder, key: string | number): Json {
  return (holder as Record<string | number, Json>)[key] ?? null
}

function write(holder: Holder, key: string | number, value: Json): void {
  Object.defineProperty(holder, key, { value, enumerable: true, writable: true, configurable: true })
}

function remove(holder: Holder, key: string | number): void {
  if (Array.isArray(holder)) holder.splice(Number(key), 1)
  else delete holder[key]
}

function repeat(holder: Holder, key: string | number, times: number): void {
  const value = read(holder, key)
  // A copy of copies of the whole would be a test of memory.
  const room = Math.ceil(20_000 / JSON.stringify(value).length)
  const copies = Array.from({ length: Math.min(times, room) }, () => structuredClone(value))
  if (Array.isArray(holder)) holder.splice(Number(key), 0, ...copies)
  else write(holder, key, copies)
}

function rename(holder: Holder, key: string | number, rng: Rng): void {
  const value = read(holder, key)
  remove(holder, key)
  if (Array.isArray(holder)) holder.splice(rng.below(holder.length + 1), 0, value)
  else write(holder, rng.below(2) === 0 ? picked(ODD_KEYS, rng) : `${String(key)}_`, value)
}

function nested(value: Json, depth: number): Json {
  let nest = value
  for (let i = 0; i < depth; i++) nest = i % 2 === 0 ? [nest] : { a: nest }
  return nest
}

/** The same thing as another type. */
function retyped(value: Json): Json {
  if (typeof value === 'string') return /^\d+$/.test(value) ? Number(value) : [{ type: 'text', text: value }]
  if (typeof value === 'number' || typeof value === 'boolean') return String(value)
  if (Array.isArray(value)) return Object.fromEntries((value as readonly Json[]).map((inner, i) => [String(i), inner]))
  return value === null ? {} : Object.values(value)
}

function oddValue(rng: Rng): Json {
  const kinds: readonly (() => Json)[] = [
    () => null,
    () => rng.below(2) === 0,
    () => picked(ODD_NUMBERS, rng),
    () => picked(ODD_TEXTS, rng),
    () => [],
    () => ({}),
    () => [null],
    () => ({ type: 'image', source: { type: 'base64', data: '' } }),
  ]
  return picked(kinds, rng)()
}

/** Cut short, with a piece missing, with a piece twice, or with something foreign in it. */
function mutatedText(text: string, rng: Rng): string {
  const [a, b] = [rng.below(text.length + 1), rng.below(text.length + 1)]
  const [from, to] = a < b ? [a, b] : [b, a]
  const end = Math.min(to, from + 40)
  switch (rng.below(5)) {
    case 0:
      return text.slice(0, from)
    case 1:
      return text.slice(0, from) + text.slice(end)
    case 2:
      return text.slice(0, end) + text.slice(from)
    case 3:
      return (
        text.slice(0, from) + picked(['"', '\\', '\u0000', '{', ']', '1e999', '\ud800', ',,'], rng) + text.slice(from)
      )
    default:
      return text.replace('{', '{"model":"twice","messages":[],"input":[],"contents":[],')
  }
}

export interface Envelope {
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
}

const METHODS: readonly string[] = ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD']

/** @param strangers Keys that open nothing here. */
export function mutatedEnvelope(sound: Envelope, keyHeader: string, strangers: readonly string[], rng: Rng): Envelope {
  const { method, path, headers } = sound
  const { [keyHeader]: key = '', ...keyless } = headers
  switch (rng.below(8)) {
    case 0:
      return { method: picked(METHODS, rng), path, headers }
    case 1:
      return { method, path, headers: keyless }
    case 2:
      return { method, path, headers: { ...headers, [keyHeader]: key.replace(/[^ ]+$/, picked(strangers, rng)) } }
    case 3:
      return { method, path: mutatedPath(path, rng), headers }
    case 4:
      return { method, path, headers: { ...headers, 'content-encoding': picked(['gzip', 'br', 'identity', 'x'], rng) } }
    case 5:
      return { method, path, headers: { ...headers, 'content-type': picked(['text/plain', 'x', 'multipart/a'], rng) } }
    case 6:
      return {
        method,
        path: `${path}${path.includes('?') ? '&' : '?'}${picked(['a=%', 'alt=json', '&&', 'key='], rng)}`,
        headers,
      }
    default:
      return { method, path, headers: { ...headers, 'x-stainless-retry-count': picked(['1', '-1', 'x', '1e9'], rng) } }
  }
}

function mutatedPath(path: string, rng: Rng): string {
  const at = rng.below(path.length)
  const put = picked(['', '/', '%', '%2F', '%00', ':', '..', '?', '%C3%A9', 'v1'], rng)
  const mutated = path.slice(0, at) + put + path.slice(at + rng.below(4))
  return mutated.startsWith('/') ? mutated : `/${mutated}`
}

export function picked<T>(values: readonly T[], rng: Rng): T {
  return values[rng.below(values.length)] as T
}
