/**
 * @file A timeline for ui.perfetto.dev in the Chrome trace format: one track per cell, executions as spans of their own.
 *
 * Slices of one track must nest, so what overlaps (executions) is written as asynchronous spans with an id. The file
 * is an array whose end may be missing: a killed run leaves a timeline that still opens.
 */
import { closeSync, ftruncateSync, openSync, rmSync, writeSync } from 'node:fs'

export interface TraceSlice {
  /** For example `cell 0`. */
  readonly track: string
  readonly name: string
  /** ms of the run's clock. */
  readonly startMs: number
  readonly durationMs: number
  readonly facts?: Readonly<Record<string, unknown>>
}

export interface TraceWriter {
  /** What a track did, without overlap within the track. */
  slice(slice: TraceSlice): void
  /** What may overlap: an execution, from start to score. */
  span(id: string, span: Omit<TraceSlice, 'track'>): void
  /** A number over time, for example the water level. */
  counter(name: string, atMs: number, value: number): void
  close(): void
}

const PROCESS = 1

/** Starts a new file. */
export function openTrace(path: string): TraceWriter {
  // Appending, so that what is cut off leaves no hole.
  rmSync(path, { force: true })
  const file = openSync(path, 'a')
  let size = 0
  const tracks = new Map<string, number>()
  let isOpen = true
  let isFirst = true
  const write = (event: Readonly<Record<string, unknown>>): void => {
    if (isOpen && append(`${isFirst ? '[\n' : ',\n'}${JSON.stringify({ pid: PROCESS, ...event })}`)) isFirst = false
  }
  /** All or nothing: on a full disk an event is lost, and the rest still is an array. */
  const append = (text: string): boolean => {
    const bytes = Buffer.from(text)
    try {
      if (writeSync(file, bytes) === bytes.length) {
        size += bytes.length
        return true
      }
    } catch {
      // Below.
    }
    ftruncateSync(file, size)
    return false
  }
  const trackId = (name: string): number => {
    const known = tracks.get(name)
    if (known !== undefined) return known
    const id = tracks.size + 1
    tracks.set(name, id)
    write({ ph: 'M', tid: id, name: 'thread_name', args: { name } })
    return id
  }
  return {
    slice: ({ track, name, startMs, durationMs, facts = {} }) =>
      write({ ph: 'X', tid: trackId(track), name, ts: micros(startMs), dur: micros(durationMs), args: facts }),
    span: (id, { name, startMs, durationMs, facts = {} }) => {
      const shared = { tid: 0, cat: 'execution', id, name }
      write({ ph: 'b', ...shared, ts: micros(startMs), args: facts })
      write({ ph: 'e', ...shared, ts: micros(startMs + durationMs) })
    },
    counter: (name, atMs, value) => write({ ph: 'C', tid: 0, name, ts: micros(atMs), args: { value } }),
    close: () => {
      if (!isOpen) return
      append(isFirst ? '[]\n' : '\n]\n')
      isOpen = false
      closeSync(file)
    },
  }
}

function micros(ms: number): number {
  return Math.round(ms * 1000)
}
