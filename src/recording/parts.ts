/** @file Elements of lists that repeat from request to request, each stored once. */

/** The one key of an object that stands for a list of parts: `{"$list": "0-14,17"}`. */
const LIST_KEY = '$list'

/** Gives equal parts one number. */
export class PartTable {
  readonly parts: unknown[] = []
  readonly #numbers = new Map<string, number>()

  /** Replaces the lists directly in a body by references. */
  pack(body: unknown): unknown {
    if (!isObject(body)) return body
    return Object.fromEntries(
      Object.entries(body).map(([key, value]) => {
        if (!Array.isArray(value)) return [key, value]
        return [key, { [LIST_KEY]: ranges(value.map((part) => this.#number(part))) }]
      }),
    )
  }

  #number(part: unknown): number {
    const text = JSON.stringify(part)
    const known = this.#numbers.get(text)
    if (known !== undefined) return known
    const number = this.parts.push(part) - 1
    this.#numbers.set(text, number)
    return number
  }
}

/** @throws RangeError for a part that is not there. */
export function unpack(body: unknown, parts: readonly unknown[]): unknown {
  if (!isObject(body)) return body
  return Object.fromEntries(
    Object.entries(body).map(([key, value]) => {
      if (!isObject(value) || typeof value[LIST_KEY] !== 'string') return [key, value]
      return [key, numbers(value[LIST_KEY]).map((number) => partAt(parts, number))]
    }),
  )
}

function partAt(parts: readonly unknown[], number: number): unknown {
  if (number >= parts.length) throw new RangeError(`there is no part ${number}`)
  return parts[number]
}

function ranges(list: readonly number[]): string {
  const out: { from: number; to: number }[] = []
  for (const number of list) {
    const last = out.at(-1)
    if (last !== undefined && number === last.to + 1) last.to = number
    else out.push({ from: number, to: number })
  }
  return out.map(({ from, to }) => (from === to ? `${from}` : `${from}-${to}`)).join(',')
}

function numbers(text: string): readonly number[] {
  if (text === '') return []
  return text.split(',').flatMap((range) => {
    const [from = NaN, to = from] = range.split('-').map(Number)
    return Array.from({ length: to - from + 1 }, (_, i) => from + i)
  })
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
