/**
 * @file A policy small enough to check every number of: what a step does to its weights depends on the weights it was
 * done on, and a token depends on its execution and its place alone.
 */
import { hashSeed } from '../../src/core/rng.ts'

export const PARAMETERS = 96
/** The last token of every answer. */
export const STOP = 1

/** 16 bits of the weights: who has other weights has another digest. */
export function digestOf(weights: Float32Array): number {
  const words = new Uint32Array(weights.buffer, weights.byteOffset, weights.length)
  let h = 0x811c9dc5
  for (const word of words) h = Math.imul(h ^ word, 0x01000193)
  return (h ^ (h >>> 16)) & 0xffff
}

/** Micro-steps a group is cut into; some have none. */
export function microStepsOf(group: number): number {
  return hashSeed('micro-steps', group) % 4
}

/** Adds the gradient of one micro-step on weights of this digest. Sums of them are exact. */
export function addGradient(gradient: Float32Array, group: number, index: number, digest: number): void {
  const at = (group * 4 + index) % PARAMETERS
  gradient[at] = (gradient[at] ?? 0) + 1 + digest / 65536
}

/** The weights after these steps, each a list of group numbers. */
export function weightsAfter(steps: readonly (readonly number[])[]): Float32Array {
  const weights = new Float32Array(PARAMETERS)
  for (const groups of steps) {
    const digest = digestOf(weights)
    const gradient = new Float32Array(PARAMETERS)
    for (const group of groups) {
      for (let i = 0; i < microStepsOf(group); i++) addGradient(gradient, group, i, digest)
    }
    gradient.forEach((value, at) => (weights[at] = (weights[at] ?? 0) + value))
  }
  return weights
}

/** Token `at` of an answer of `length`. */
export function tokenAt(requestId: string, at: number, length: number): number {
  return at === length - 1 ? STOP : 2 + (hashSeed(requestId, at) % 30_000)
}

/** A log-prob that proves which weights a token was sampled with. [nats] */
export const evidenceOf = (digest: number): number => -1 - digest / 65536
