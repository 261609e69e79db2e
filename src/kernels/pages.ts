/**
 * @file Pages of the sampler's cache as they are copied, cleared, taken out and put in. Runs on one thread.
 *
 * Of every page the cache holds one piece for each layer's keys, values and head: `TILE * headDim` float32, in the
 * order of the plan. Outside of it a page is its pieces behind one another.
 */
import type { Machine } from './machine.ts'
import { type MemoryPlan, TILE } from './plan.ts'

/** Numbers of one page. [float32] */
export function pageFloats({ shape }: MemoryPlan): number {
  return TILE * shape.headDim * shape.kvHeads * shape.layers * 2
}

/** Calls `body` with the place of each piece of a page. [float32 from the start of the memory] */
function eachPiece({ plan }: Machine, page: number, body: (at: number, size: number) => void): void {
  const { sample, shape } = plan
  const size = TILE * shape.headDim
  const pieces = 2 * shape.layers * shape.kvHeads
  for (let i = 0; i < pieces; i++) body((sample.cache + i * sample.headBytes) / 4 + page * size, size)
}

/** Copies one page of every layer and head. */
export function copyPage(m: Machine, from: number, to: number): void {
  eachPiece(m, from, (at, size) => m.f32.copyWithin(at + (to - from) * size, at, at + size))
}

/** @returns copies of pages, [pages.length * pageFloats]. */
export function readPages(m: Machine, pages: ArrayLike<number>): Float32Array {
  const data = new Float32Array(pages.length * pageFloats(m.plan))
  let to = 0
  for (let i = 0; i < pages.length; i++) {
    eachPiece(m, pages[i] ?? 0, (at, size) => {
      data.set(m.f32.subarray(at, at + size), to)
      to += size
    })
  }
  return data
}

/** @param data [pages.length * pageFloats], as readPages made it. */
export function writePages(m: Machine, pages: ArrayLike<number>, data: Float32Array): void {
  let from = 0
  for (let i = 0; i < pages.length; i++) {
    eachPiece(m, pages[i] ?? 0, (at, size) => {
      m.f32.set(data.subarray(from, from + size), at)
      from += size
    })
  }
}

/** Zeroes every page: a value that is not a number would survive a weight of zero. */
export function clearPages(m: Machine): void {
  const { sample, shape } = m.plan
  const at = sample.cache / 4
  m.f32.fill(0, at, at + (sample.headBytes / 4) * 2 * shape.layers * shape.kvHeads)
}
