/**
 * @file Carries outside text through a chat template without letting it form a special token.
 *
 * Before rendering, every special token spelled in the text becomes a placeholder of two private-use
 * characters around a number; after rendering and splitting at the template's own special tokens the
 * placeholders are restored. Where a text begins or ends with a part of a special token, that part
 * becomes a placeholder too, so that the text cannot complete one together with its neighbor.
 */
import { alternation } from './alternation.ts'

const OPEN = '\uE000'
const CLOSE = '\uE001'
const PLACEHOLDER = /\uE000(\d+)\uE001/g

export class SpecialGuard {
  readonly #hidden: readonly string[]
  readonly #numberOf: ReadonlyMap<string, number>
  readonly #pattern: RegExp
  readonly #prefixes: ReadonlySet<string>
  readonly #suffixes: ReadonlySet<string>
  readonly #longest: number

  constructor(specials: readonly string[]) {
    // The opening character hides itself, so no text can contain a placeholder of its own.
    const whole = [...specials, OPEN]
    const cuts = specials.flatMap((text) =>
      Array.from({ length: text.length - 1 }, (_, i) => i + 1).map((at) => ({ text, at })),
    )
    this.#prefixes = new Set(cuts.map(({ text, at }) => text.slice(0, at)))
    this.#suffixes = new Set(cuts.map(({ text, at }) => text.slice(at)))
    this.#hidden = [...new Set([...whole, ...this.#prefixes, ...this.#suffixes])]
    this.#numberOf = new Map(this.#hidden.map((text, number) => [text, number]))
    this.#pattern = new RegExp(alternation(whole), 'gu')
    this.#longest = Math.max(0, ...specials.map((text) => text.length - 1))
  }

  hide(text: string): string {
    const body = text.replace(this.#pattern, (special) => this.#placeholder(special))
    return this.#hideStart(this.#hideEnd(body))
  }

  restore(text: string): string {
    return text.replace(PLACEHOLDER, (_, number: string) => this.#hidden[Number(number)] ?? '')
  }

  /** `hide` for every string of a JSON value, keys included. */
  hideAll(value: unknown): unknown {
    if (typeof value === 'string') return this.hide(value)
    if (Array.isArray(value)) return value.map((item) => this.hideAll(item))
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [this.hide(key), this.hideAll(item)]))
  }

  #placeholder(text: string): string {
    return `${OPEN}${this.#numberOf.get(text) ?? ''}${CLOSE}`
  }

  /** Templates may trim, so white space at the edge does not protect. */
  #hideEnd(text: string): string {
    const end = text.trimEnd().length
    for (let length = Math.min(end, this.#longest); length > 0; length--) {
      const part = text.slice(end - length, end)
      if (this.#prefixes.has(part)) return text.slice(0, end - length) + this.#placeholder(part) + text.slice(end)
    }
    return text
  }

  #hideStart(text: string): string {
    const start = text.length - text.trimStart().length
    for (let length = Math.min(text.length - start, this.#longest); length > 0; length--) {
      const part = text.slice(start, start + length)
      if (this.#suffixes.has(part)) return text.slice(0, start) + this.#placeholder(part) + text.slice(start + length)
    }
    return text
  }
}

/** A text that `hide` never returns and that no hidden text contains. */
export function guardMarker(name: string): string {
  return `${OPEN}${name}${CLOSE}`
}
