/** @file Where a tree keeps its token ids. */
import { pagedMemory } from '../core/pages.ts'

/** Ids of one slab. [tokens] */
const SLAB_TOKENS = 65_536

/** Says how long-lived ids are held: returns an array equal to the given one. */
export type KeepIds = (ids: Int32Array) => Int32Array

/** Keeps the arrays it is given. */
export const keepAsGiven: KeepIds = (ids) => ids

/**
 * Copies ids into slabs of their own pages. A long execution has thousands of small arrays; allocated one by one they
 * would pin the memory between them for as long as the execution lives.
 */
export function keepInSlabs(): KeepIds {
  let slab = new Int32Array(0)
  let used = 0
  return (ids) => {
    if (ids.length > SLAB_TOKENS / 2) {
      const own = new Int32Array(pagedMemory(ids.byteLength))
      own.set(ids)
      return own
    }
    if (used + ids.length > slab.length) {
      slab = new Int32Array(pagedMemory(SLAB_TOKENS * Int32Array.BYTES_PER_ELEMENT))
      used = 0
    }
    const kept = slab.subarray(used, used + ids.length)
    kept.set(ids)
    used += ids.length
    return kept
  }
}
