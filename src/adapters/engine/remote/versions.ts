/** @file Which policy version sampled a token, from what a server says about its weights. */
import type { WeightSpan, WireChunk } from './wire.ts'

export interface VersionSource {
  readonly policyVersion: number
  readonly versionOf: ((label: string) => number | undefined) | undefined
}

/** Labels to versions, and the label the server used last. */
export class Versions {
  readonly #source: VersionSource
  #label: string | undefined
  /** What was read last: servers say the same label with every token. */
  #numbered: { readonly label: string; readonly version: number } | undefined

  constructor(source: VersionSource, label: string | undefined) {
    this.#source = source
    this.#label = label
  }

  get current(): number {
    return this.of(this.#label)
  }

  learn(label: string): void {
    this.#label = label
  }

  of(label: string | undefined): number {
    if (label === undefined) return this.#source.policyVersion
    const { versionOf, policyVersion } = this.#source
    if (versionOf !== undefined) return versionOf(label) ?? policyVersion
    if (this.#numbered?.label === label) return this.#numbered.version
    const digits = /(\d{1,15})$/.exec(label)?.[1]
    const version = digits === undefined ? policyVersion : Number(digits)
    this.#numbered = { label, version }
    return version
  }
}

/** Versions of one generation's tokens. What is said at the end corrects what was believed before. */
export class VersionStamps {
  readonly #versions: Versions
  readonly #stamped: number[] = []
  #isCorrected = false

  constructor(versions: Versions) {
    this.#versions = versions
  }

  /** The versions of the chunk's tokens. */
  stamp({ tokenIds, label, spans }: WireChunk): readonly number[] {
    const last = spans?.at(-1)?.label ?? label
    if (last !== undefined) this.#versions.learn(last)
    const first = this.#stamped.length
    const { current } = this.#versions
    for (let i = 0; i < tokenIds.length; i++) this.#stamped.push(current)
    for (const span of spans ?? []) this.#apply(span, first)
    return this.#stamped.slice(first)
  }

  /** All versions, when some that were given out before were wrong. */
  corrections(): readonly number[] | undefined {
    return this.#isCorrected ? this.#stamped : undefined
  }

  #apply({ label, start, end }: WeightSpan, firstNew: number): void {
    const version = this.#versions.of(label)
    for (let i = Math.max(0, start); i < Math.min(end, this.#stamped.length); i++) {
      if (this.#stamped[i] !== version && i < firstNew) this.#isCorrected = true
      this.#stamped[i] = version
    }
  }
}
