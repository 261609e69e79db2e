import { closeSync, fstatSync, openSync, readSync } from 'node:fs'

const TAIL_BYTES = 16 * 1024
const MAX_CHARS = 500

/** The last line of a log that is not blank, shortened; empty when there is none. */
export function lastLine(path: string): string {
  const fd = openSync(path, 'r')
  try {
    const size = fstatSync(fd).size
    const length = Math.min(size, TAIL_BYTES)
    const bytes = Buffer.alloc(length)
    readSync(fd, bytes, 0, length, size - length)
    const lines = bytes.toString('utf8').split('\n')
    return (
      lines
        .findLast((line) => line.trim() !== '')
        ?.trim()
        .slice(0, MAX_CHARS) ?? ''
    )
  } finally {
    closeSync(fd)
  }
}
