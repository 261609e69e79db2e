/** @file The compiled kernels as TypeScript sees them. Pointers and strides are bytes; assembly/ has the meanings. */

type Fn<A extends readonly unknown[], R = void> = (...args: A) => R
type P = number

export interface Kernels {
  readonly barrier: Fn<[p: P, threads: number]>
  readonly gemm: Fn<[a: P, lda: P, b: P, c: P, ldc: P, m: number, k: number, panels: number, mode: number]>
  readonly gemmTransposed: Fn<
    [a: P, lda: P, b: P, ldb: P, c: P, ldc: P, t: number, from: number, to: number, n: number, scratch: P]
  >
  readonly packRows: Fn<[w: P, n: number, k: number, out: P, from: number, to: number]>
  readonly packColumns: Fn<[w: P, n: number, padded: number, k: number, out: P, from: number, to: number]>
  readonly embedRows: Fn<[ids: P, rows: number, table: P, d: number, out: P]>
  readonly normRows: Fn<[x: P, rows: number, d: number, gain: P, epsilon: number, out: P, inverse: P]>
  readonly normBackward: Fn<[x: P, dy: P, rows: number, d: number, gain: P, inverse: P, dx: P, add: number]>
  readonly normGain: Fn<[x: P, dy: P, rows: number, d: number, inverse: P, dgain: P, from: number, to: number]>
  readonly ropeRows: Fn<
    [
      x: P,
      ld: P,
      rows: number,
      positions: P,
      table: P,
      heads: number,
      kvHeads: number,
      hd: number,
      scale: number,
      sign: number,
    ]
  >
  readonly swigluRows: Fn<[gu: P, rows: number, ff: number, out: P, from: number, to: number]>
  readonly swigluBackward: Fn<[gu: P, dact: P, rows: number, ff: number, dgu: P, act: P]>
  readonly scatterAdd: Fn<[x: P, ids: P, rows: number, d: number, out: P, from: number, to: number]>
  readonly copyRows: Fn<[x: P, ldx: P, out: P, ldo: P, rows: number, columns: number]>
  readonly packTiles: Fn<[x: P, ld: P, first: number, rows: number, hd: number, tiles: P]>
  readonly storeKeyValue: Fn<[k: P, v: P, i: number, hd: number, tiles: P, values: P]>
  readonly attend: Fn<
    [
      ...query: [q: P, ldq: P, count: number, group: number, hd: number],
      ...keys: [kTiles: P, v: P, ldv: P, list: P, n: number, tail: number, ends: P, first: number],
      ...result: [scratch: P, out: P, ldo: P, lse: P, ldl: P],
    ]
  >
  readonly attendBackward: Fn<
    [
      ...query: [q: P, ldq: P, dout: P, ldo: P, count: number, group: number, hd: number],
      ...keys: [kTiles: P, vTiles: P, k: P, ldk: P, list: P, n: number, ends: P, first: number, scratch: P],
      ...result: [lse: P, delta: P, ldl: P, dq: P, ldq: P, dk: P, dv: P, ldd: P],
    ]
  >
  readonly rowDots: Fn<[a: P, b: P, rows: number, heads: number, hd: number, out: P]>
  readonly logSumExp: Fn<[z: P, v: number, padded: number], number>
  readonly entropy: Fn<[z: P, padded: number, lse: number], number>
  readonly logitsGradient: Fn<
    [z: P, padded: number, lse: number, target: number, slope: number, bonus: number, h: number]
  >
  readonly argmax: Fn<[z: P, v: number], number>
  readonly draw: Fn<[z: P, v: number, padded: number, temperature: number, u: number, scratch: P], number>
  readonly sumSquares: Fn<[x: P, n: number], number>
  readonly adamw: Fn<
    [
      ...vectors: [w: P, g: P, m: P, v: P, n: number],
      ...moments: [scale: number, beta1: number, beta2: number],
      ...step: [rate: number, correction: number, epsilon: number, decay: number],
    ]
  >
  readonly largestMagnitude: Fn<[x: P, n: number], number>
  readonly accumulate: Fn<[x: P, sums: P, n: number, below8: number]>
  readonly roundSums: Fn<[sums: P, x: P, n: number]>
  readonly addSums: Fn<[x: P, y: P, n: number]>
}

/** How gemm treats what `c` holds: see assembly/gemm.ts. */
export const STORE = 0
export const ADD = 1

/** The part of the WebAssembly interface used here: the Node types of this version do not describe it. */
interface WasmApi {
  readonly Module: new (bytes: Uint8Array) => WasmModule
  readonly Instance: new (module: WasmModule, imports: object) => { readonly exports: unknown }
  readonly Memory: new (limits: { initial: number; maximum: number; shared: true }) => WasmMemory
}
/** Can be posted to a worker. */
export interface WasmModule {
  readonly wasmModule?: never
}
/** Can be posted to a worker, which then shares it. */
export interface WasmMemory {
  readonly buffer: SharedArrayBuffer
}
const api = (globalThis as unknown as { readonly WebAssembly: WasmApi }).WebAssembly
const PAGE = 65536

export function compileKernels(bytes: Uint8Array): WasmModule {
  return new api.Module(bytes)
}

/** A shared memory of fixed size. @param bytes at most 4 GiB. */
export function allocateMemory(bytes: number): WasmMemory {
  const pages = Math.ceil(bytes / PAGE)
  return new api.Memory({ initial: pages, maximum: pages, shared: true })
}

function abort(): never {
  throw new Error('a kernel aborted')
}

/** One instance per thread over the shared memory. */
export function instantiateKernels(module: WasmModule, memory: WasmMemory): Kernels {
  return new api.Instance(module, { env: { memory, abort } }).exports as Kernels
}
