/** @file Reads and writes the folder of a recording. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { z } from 'zod'
import { errorText, GyreError } from '../core/errors.ts'
import { RECORDING_FILES, recordingSchemas } from './format.ts'
import type { RecordedExchange, RecordingFiles } from './format.ts'
import { unpack } from './parts.ts'
import { withFillers } from './replace.ts'

/** Writes the four files, making the folder when it is missing. */
export function writeRecording(folder: string, { head, calls, exchanges, parts }: RecordingFiles): void {
  mkdirSync(folder, { recursive: true })
  const write = (name: string, text: string): void => writeFileSync(join(folder, name), `${text}\n`)
  write(RECORDING_FILES.head, JSON.stringify(head, null, 2))
  write(RECORDING_FILES.calls, jsonLines(calls))
  write(RECORDING_FILES.exchanges, jsonLines(exchanges))
  write(RECORDING_FILES.parts, jsonLines(parts))
}

export function isRecording(folder: string): boolean {
  return existsSync(join(folder, RECORDING_FILES.head))
}

/** @throws GyreError E_CONFIG_RECORDING naming the file and the line. */
export function readRecording(folder: string): RecordingFiles {
  const text = (name: string): string => readText(join(folder, name))
  const head = parsed(recordingSchemas.head, text(RECORDING_FILES.head), join(folder, RECORDING_FILES.head))
  const lines = (name: string): readonly string[] =>
    text(name)
      .split('\n')
      .filter((line) => line !== '')
  const rows = <T>(schema: z.ZodType<T>, name: string): readonly T[] =>
    lines(name).map((line, i) => parsed(schema, line, `${join(folder, name)}:${i + 1}`))
  return {
    head,
    calls: rows(recordingSchemas.call, RECORDING_FILES.calls),
    exchanges: rows(recordingSchemas.exchange, RECORDING_FILES.exchanges),
    parts: lines(RECORDING_FILES.parts).map((line, i) => json(line, `${join(folder, RECORDING_FILES.parts)}:${i + 1}`)),
  }
}

/** The body as it is sent again: references looked up, replaced texts filled. @throws GyreError E_CONFIG_RECORDING. */
export function bodyOf(exchange: RecordedExchange, parts: readonly unknown[]): unknown {
  try {
    return withFillers(unpack(exchange.body, parts))
  } catch (error) {
    throw recordingError(`exchange ${exchange.arrival}: ${errorText(error)}`, error)
  }
}

function jsonLines(rows: readonly unknown[]): string {
  return rows.map((row) => JSON.stringify(row)).join('\n')
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw recordingError(`${file} cannot be read: give a folder that gyre record wrote`, error)
  }
}

function parsed<T>(schema: z.ZodType<T>, text: string, place: string): T {
  const result = schema.safeParse(json(text, place))
  if (result.success) return result.data
  const issue = result.error.issues[0]
  throw recordingError(`${place}: ${issue?.path.map(String).join('.') ?? ''}: ${issue?.message ?? 'is wrong'}`)
}

function json(text: string, place: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw recordingError(`${place} is not JSON`, error)
  }
}

function recordingError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'config', code: 'E_CONFIG_RECORDING', cause })
}
