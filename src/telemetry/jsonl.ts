/**
 * @file Append-only files of JSON lines that a kill cannot spoil.
 *
 * A line is written by one call, so only the last line of a file can be torn. The writer cuts a torn tail off when
 * it opens the file; the reader passes over it.
 */
import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readFileSync, readSync, writeSync } from 'node:fs'

export interface JsonlWriter {
  write(record: Readonly<Record<string, unknown>>): void
  close(): void
}

const NEWLINE = 10

/** Opens for appending; creates the file when it is missing. Its folder must exist. */
export function openJsonl(path: string): JsonlWriter {
  const file = openSync(path, 'a+')
  cutTornTail(file)
  let isOpen = true
  let isTorn = false
  return {
    // A log is no ledger: on a full disk a line is lost, and the run goes on.
    write: (record) => {
      if (!isOpen) return
      const line = Buffer.from(`${isTorn ? '\n' : ''}${jsonLine(record)}\n`)
      try {
        isTorn = writeSync(file, line) < line.length
      } catch {
        isTorn = true
      }
    },
    close: () => {
      if (isOpen) closeSync(file)
      isOpen = false
    },
  }
}

/** One line of JSON; NaN and the infinities, which JSON lacks, are null. */
export function jsonLine(record: Readonly<Record<string, unknown>>): string {
  return JSON.stringify(record)
}

/** Every whole line of the file; a file that is missing has none. */
export function readJsonl(path: string): readonly Readonly<Record<string, unknown>>[] {
  if (!existsSync(path)) return []
  return readFileSync(path, 'utf8')
    .split('\n')
    .flatMap((line) => {
      try {
        return [JSON.parse(line) as Record<string, unknown>]
      } catch {
        return []
      }
    })
}

function cutTornTail(file: number): void {
  const { size } = fstatSync(file)
  const chunk = Buffer.alloc(4096)
  for (let end = size; end > 0;) {
    const start = Math.max(0, end - chunk.length)
    const length = readSync(file, chunk, 0, end - start, start)
    const newline = chunk.subarray(0, length).lastIndexOf(NEWLINE)
    if (newline >= 0) return ftruncateSync(file, start + newline + 1)
    end = start
  }
  ftruncateSync(file, 0)
}
