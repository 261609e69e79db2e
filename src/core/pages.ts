/** @file Memory in pages of its own. */

/** Less than this is not worth a page table entry. [bytes] */
const LEAST_BYTES = 64 * 1024

/**
 * Memory that goes back to the system as a whole once nobody holds it.
 *
 * An allocator that serves blocks of every size keeps the holes that large short-lived blocks leave between small
 * long-lived ones: a process that reads requests of megabytes would grow to many times what it holds. A resizable
 * buffer is mapped by itself. Copy, compare and decode it as a whole: single elements of it are slow to read and write.
 * @param bytes Its length. Zeros.
 */
export function pagedMemory(bytes: number): ArrayBuffer {
  return bytes < LEAST_BYTES ? new ArrayBuffer(bytes) : new ArrayBuffer(bytes, { maxByteLength: bytes })
}
