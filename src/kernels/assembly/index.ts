/**
 * @file Numeric kernels of the embedded engine: fp32, SIMD128, one shared memory, any number of threads.
 *
 * Numerics rule: every output is summed sequentially over the inner dimension, in one order, whatever the
 * number of rows, the blocking or the threads are. A row computed alone, in a chunk or in a packed batch has
 * the same bits. WebAssembly without relaxed SIMD never fuses a multiply with an add, so this holds on every CPU.
 *
 * Pointers are byte offsets, strides (`ld...`) are bytes, counts are elements.
 */
export { barrier } from './sync'
export { gemm, gemmTransposed, packRows, packColumns } from './gemm'
export { embedRows, normRows, normBackward, normGain, ropeRows, swigluRows, swigluBackward, scatterAdd, copyRows } from './rows'
export { packTiles, storeKeyValue, attend, attendBackward, rowDots } from './attention'
export { logSumExp, entropy, logitsGradient, argmax, draw } from './logits'
export { largestMagnitude, accumulate, roundSums, addSums } from './accumulate'
export { sumSquares, adamw } from './optimizer'
