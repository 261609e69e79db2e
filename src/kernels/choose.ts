/** @file Which token to sample from a row of logits. */
import type { Machine } from './machine.ts'

/** A number in [0, 1) that depends on (seed, position) only: two rounds of 32-bit mixing, 53 bits. */
export function drawAt(seed: number, position: number): number {
  const high = mix(mix(seed | 0) ^ Math.imul(position + 1, 0x9e3779b1))
  const low = mix(high ^ Math.imul(position + 0x51ed27, 0x85ebca77))
  return ((high >>> 5) * 67108864 + (low >>> 6)) / 9007199254740992
}

/** A bijective 32-bit mixer (two xor-shift-multiply rounds). */
function mix(x: number): number {
  let z = (x + 0x6d2b79f5) | 0
  z = Math.imul(z ^ (z >>> 16), 0x21f0aaad)
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
  return z ^ (z >>> 15)
}

export interface Truncation {
  /** 0 samples the most likely token. */
  readonly temperature: number
  readonly topP: number
  /** 0 means no limit. */
  readonly topK: number
}

/** @param logits byte offset of the row, padding at -inf. @param u in [0, 1). */
export function chooseToken(m: Machine, logits: number, t: Truncation, u: number): number {
  const { shape, layout, sample } = m.plan
  if (t.temperature <= 0) return m.k.argmax(logits, shape.vocabSize)
  if (t.topK <= 0 && t.topP >= 1) {
    return m.k.draw(logits, shape.vocabSize, layout.paddedVocab, t.temperature, u, sample.drawScratch)
  }
  return drawTruncated(m.f32.subarray(logits / 4, logits / 4 + shape.vocabSize), t, u)
}

/** Far below any nucleus; keeps the sort short. */
const NEGLIGIBLE = 1e-9

/** Top-k first, then the smallest set of the rest that holds `topP` of its mass. */
function drawTruncated(logits: Float32Array, t: Truncation, u: number): number {
  const top = logits.reduce((a, b) => Math.max(a, b), -Infinity)
  let kept: { readonly id: number; readonly w: number }[] = []
  logits.forEach((z, id) => {
    const w = Math.exp((z - top) / t.temperature)
    if (w > NEGLIGIBLE) kept.push({ id, w })
  })
  kept.sort((a, b) => b.w - a.w || a.id - b.id)
  if (t.topK > 0) kept = kept.slice(0, t.topK)
  const mass = kept.reduce((sum, x) => sum + x.w, 0)
  let size = 0
  for (let sum = 0; size < kept.length && sum < t.topP * mass; size++) sum += kept[size]?.w ?? 0
  kept.length = Math.max(1, size)
  const goal = u * kept.reduce((sum, x) => sum + x.w, 0)
  let sum = 0
  for (const x of kept) {
    sum += x.w
    if (sum > goal) return x.id
  }
  return kept.at(-1)?.id ?? 0
}
