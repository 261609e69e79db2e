/**
 * @file A 128-bit hash of texts, in plain arithmetic: this layer has no node:crypto.
 *
 * The mixing is MurmurHash3 (x86, 128 bits) over UTF-16 units, each text led by its length so that no two lists of
 * texts run together. It keeps accidental collisions away (2^-64 at 2^32 texts); it does not resist chosen ones.
 */

const C1 = 0x239b961b
const C2 = 0xab0e9789
const C3 = 0x38b34ae5
const C4 = 0xa1e38b93

/** What is mixed at once. [UTF-16 units] */
const BLOCK = 8

declare global {
  interface String {
    /** ES2024, which every Node.js we run on has. */
    toWellFormed(): string
  }
}

/** Lone surrogates do not survive UTF-8: they count as the replacement character. */
export function wellFormed(text: string): string {
  return text.toWellFormed()
}

function rotated(x: number, by: number): number {
  return (x << by) | (x >>> (32 - by))
}

/** The bits of a word spread over all of its bits. */
function spread(word: number): number {
  let h = word
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return h ^ (h >>> 16)
}

function hex(word: number): string {
  return (word >>> 0).toString(16).padStart(8, '0')
}

/** Takes texts one after another. Equal lists of texts have equal digests, and different lists different ones. */
export class ContentHash {
  #a = 0x2545f491
  #b = 0x4f6cdd1d
  #c = 0x1b873593
  #d = 0x5bd1e995

  add(text: string): this {
    const content = wellFormed(text)
    const { length } = content
    this.#mix(length.toString(36).padStart(BLOCK), BLOCK)
    const whole = length - (length % BLOCK)
    this.#mix(content, whole)
    if (whole < length) this.#mix(content.slice(whole).padEnd(BLOCK), BLOCK)
    return this
  }

  /** 32 hexadecimal digits. */
  digest(): string {
    let [a, b, c, d] = [this.#a, this.#b, this.#c, this.#d]
    a = (a + b + c + d) | 0
    ;[b, c, d] = [b + a, c + a, d + a]
    ;[a, b, c, d] = [spread(a), spread(b), spread(c), spread(d)]
    a = (a + b + c + d) | 0
    return hex(a) + hex(b + a) + hex(c + a) + hex(d + a)
  }

  /** The state stands in local variables while the loop runs: that is what makes it fast. */
  #mix(text: string, end: number): void {
    let a = this.#a
    let b = this.#b
    let c = this.#c
    let d = this.#d
    for (let i = 0; i < end; i += BLOCK) {
      const k1 = text.charCodeAt(i) | (text.charCodeAt(i + 1) << 16)
      const k2 = text.charCodeAt(i + 2) | (text.charCodeAt(i + 3) << 16)
      const k3 = text.charCodeAt(i + 4) | (text.charCodeAt(i + 5) << 16)
      const k4 = text.charCodeAt(i + 6) | (text.charCodeAt(i + 7) << 16)
      a ^= Math.imul(rotated(Math.imul(k1, C1), 15), C2)
      a = (Math.imul((rotated(a, 19) + b) | 0, 5) + 0x561ccd1b) | 0
      b ^= Math.imul(rotated(Math.imul(k2, C2), 16), C3)
      b = (Math.imul((rotated(b, 17) + c) | 0, 5) + 0x0bcaa747) | 0
      c ^= Math.imul(rotated(Math.imul(k3, C3), 17), C4)
      c = (Math.imul((rotated(c, 15) + d) | 0, 5) + 0x96cd1c35) | 0
      d ^= Math.imul(rotated(Math.imul(k4, C4), 18), C1)
      d = (Math.imul((rotated(d, 13) + a) | 0, 5) + 0x32ac3b17) | 0
    }
    this.#a = a
    this.#b = b
    this.#c = c
    this.#d = d
  }
}
