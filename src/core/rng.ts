/**
 * @file Seeded randomness. Pure code takes an Rng or a seed as an argument.
 *
 * Generator: sfc32 (Doty-Humphrey, PractRand), seeded through splitmix32, so that
 * neighbouring seeds give unrelated streams.
 */

export interface Rng {
  /** Uniform in [0, 1), 32 bits of resolution. */
  next(): number
  /** Uniform integer in [0, bound). */
  below(bound: number): number
}

function splitmix32(state: number): () => number {
  let s = state >>> 0
  return () => {
    s = (s + 0x9e3779b9) >>> 0
    let z = s
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad)
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
    return (z ^ (z >>> 15)) >>> 0
  }
}

/** A reproducible stream; the same seed gives the same numbers on every machine. */
export function seededRng(seed: number): Rng {
  const mix = splitmix32(seed)
  let a = mix()
  let b = mix()
  let c = mix()
  let counter = 1
  const next = (): number => {
    const t = (((a + b) >>> 0) + counter) >>> 0
    counter = (counter + 1) >>> 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) >>> 0
    c = (c << 21) | (c >>> 11)
    c = (c + t) >>> 0
    return t / 4294967296
  }
  for (let i = 0; i < 12; i++) next()
  return { next, below: (bound) => Math.floor(next() * bound) }
}

/** A 32-bit seed from any parts: FNV-1a over their text. Use it to give every execution its own stream. */
export function hashSeed(...parts: readonly (string | number)[]): number {
  let h = 0x811c9dc5
  for (const char of parts.join('\u001f')) {
    h = Math.imul(h ^ (char.codePointAt(0) ?? 0), 0x01000193)
  }
  return h >>> 0
}

/** Fisher-Yates; returns a new array. */
export function shuffled<T>(values: readonly T[], rng: Rng): T[] {
  const out = [...values]
  for (let i = out.length - 1; i > 0; i--) {
    const j = rng.below(i + 1)
    const held = out[i] as T
    out[i] = out[j] as T
    out[j] = held
  }
  return out
}
