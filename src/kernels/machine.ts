/** @file One thread's hold on the shared memory: kernels, plan, typed views, and how work is divided. */
import type { MemoryPlan } from './plan.ts'
import type { Kernels, WasmMemory } from './wasm.ts'

export interface Machine {
  readonly k: Kernels
  readonly plan: MemoryPlan
  /** This thread, 0..threads-1. Every thread runs the same pass on its own part. */
  readonly thread: number
  readonly threads: number
  readonly i32: Int32Array
  readonly f32: Float32Array
  readonly f64: Float64Array
  readonly i64: BigInt64Array
  readonly barrier: () => void
}

/** Layout of the control region, in i32 from its start: two barriers (2 each), then the job. */
const JOB_BARRIER = 0
const PASS_BARRIER = 16
export const JOB_WORDS = 32

export function createMachine(k: Kernels, plan: MemoryPlan, memory: WasmMemory, thread: number): Machine {
  const { threads } = plan.capacity
  const at = plan.control + PASS_BARRIER * 4
  return {
    k,
    plan,
    thread,
    threads,
    i32: new Int32Array(memory.buffer),
    f32: new Float32Array(memory.buffer),
    f64: new Float64Array(memory.buffer),
    i64: new BigInt64Array(memory.buffer),
    barrier: () => k.barrier(at, threads),
  }
}

/** The barrier that starts a job on every thread; followers sleep in it. */
export function jobBarrier(m: Machine): void {
  m.k.barrier(m.plan.control + JOB_BARRIER * 4, m.threads)
}

/** This thread's share [from, to) of `count` things, in multiples of `unit`. */
export function share(m: Machine, count: number, unit = 1): readonly [from: number, to: number] {
  const units = Math.ceil(count / unit)
  const from = Math.floor((units * m.thread) / m.threads) * unit
  const to = Math.floor((units * (m.thread + 1)) / m.threads) * unit
  return [Math.min(count, from), Math.min(count, to)]
}

/** Calls `body(first, rows)` for this thread's blocks of rows, dealt in turn. */
export function eachBlock(m: Machine, rows: number, size: number, body: (first: number, rows: number) => void): void {
  for (let first = m.thread * size; first < rows; first += m.threads * size) body(first, Math.min(size, rows - first))
}
