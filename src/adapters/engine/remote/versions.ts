/** @file Which policy version sampled a token, from what a server says about its weights. */
import { foreignWeights } from './failures.ts'
import type { WeightSpan, WireChunk } from './wire.ts'

export interface VersionSource {
  readonly policyVersion: number
  readonly versionOf: ((label: string) => number | undefined) | undefined
}

/** Weights the server was given by us. */
interface Pinned {
  /** For messages. */
  readonly where: string
  readonly policyVersion: number
  /** What the server calls them; undefined until it names them. */
  label: string | undefined
}

/** Labels to versions, and the label the server used last. */
export class Versions {
  readonly #source: VersionSource
  #label: string | undefined
  #pinned: Pinned | undefined
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

  /**
   * From now on the server has these weights and no others. @param label what it calls them, where that is known; else
   * the first label it uses is theirs.
   */
  pin(policyVersion: number, label: string | undefined, where: string): void {
    this.#pinned = { policyVersion, label, where }
    this.#label = label
  }

  /** Whether weights of this label are the ones that were pinned; undefined when it cannot be told. */
  arePinned(label: string | undefined): boolean | undefined {
    if (label === undefined || this.#pinned?.label === undefined) return undefined
    return label === this.#pinned.label
  }

  /** @throws GyreError E_ENGINE_WEIGHTS when weights are pinned and these are others. */
  of(label: string | undefined): number {
    if (this.#pinned !== undefined) return ofPinned(this.#pinned, label)
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

/** @throws GyreError E_ENGINE_WEIGHTS */
function ofPinned(pinned: Pinned, label: string | undefined): number {
  if (label === undefined) return pinned.policyVersion
  pinned.label ??= label
  if (label !== pinned.label) throw foreignWeights(pinned.where, label, pinned.policyVersion)
  return pinned.policyVersion
}

/** Versions of one generation's tokens. What is said at the end corrects what was believed before. */
export class VersionStamps {
  readonly #versions: Versions
  readonly #stamped: number[] = []
  #isCorrected = false

  constructor(versions: Versions) {
    this.#versions = versions
  }

  /** @throws GyreError E_ENGINE_WEIGHTS when the chunk names weights the server should not have. */
  check({ label, spans }: WireChunk): void {
    if (label !== undefined) this.#versions.of(label)
    for (const span of spans ?? []) this.#versions.of(span.label)
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
