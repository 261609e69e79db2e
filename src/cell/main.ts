/**
 * @file The body of a cell process: `gyre cell`.
 *
 * Its owner writes one line of JSON to standard input (CellBoot) and keeps the pipe open. The end of the
 * pipe is the death of the owner, and the cell ends too. Nothing secret is on the command line.
 */
import { rmdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import { GyreError, errorText } from '../core/errors.ts'
import { cellId } from '../core/ids.ts'
import type { Json } from '../core/items.ts'
import { CELL_PROTOCOL_VERSION } from '../ports/cell.ts'
import type { CellEngine } from '../ports/cell.ts'
import { serveCell } from './server.ts'

/** The first line on a cell's standard input. */
export interface CellBoot {
  readonly protocolVersion: number
  readonly cellId: string
  readonly address: string
  readonly token: string
  readonly slots: number
  /** What the engine is made from; only createEngine reads it. */
  readonly engine: Json
}

const bootSchema = z.object({
  protocolVersion: z.literal(CELL_PROTOCOL_VERSION),
  cellId: z.string().min(1),
  address: z.string().min(1),
  token: z.string().min(16),
  slots: z.number().int().positive(),
  engine: z.json(),
})

/** How long a cell waits for its first line, and how long it takes to end at most. [ms] */
const BOOT_MS = 30_000
const END_MS = 3000

export interface CellProcessOptions {
  readonly stdin: Readable
  /** Receives one line for each failure. */
  readonly log: (line: string) => void
}

/**
 * Runs a cell until its owner is gone or asks it to end (SIGTERM, SIGINT), then ends the process.
 * @throws GyreError E_CELL_BOOT when the first line does not come or is not valid; and whatever
 * createEngine throws.
 */
export async function runCellProcess(
  options: CellProcessOptions,
  createEngine: (spec: Json) => Promise<CellEngine>,
): Promise<void> {
  const owner = followOwner(options.stdin)
  const boot = parseBoot(await owner.firstLine)
  process.title = `gyre ${boot.cellId}`
  // Until the engine is up there is nothing to close in order.
  let end = nothing
  let isLeaving = false
  const leave = (why: string, exitCode = 0): void => {
    if (isLeaving) return
    isLeaving = true
    options.log(`${boot.cellId} ends: ${why}`)
    setTimeout(() => process.exit(1), END_MS).unref()
    end().then(
      () => process.exit(exitCode),
      (error: unknown) => {
        options.log(`${boot.cellId} did not end cleanly: ${errorText(error)}`)
        process.exit(1)
      },
    )
  }
  void owner.gone.then(() => leave('its owner is gone'))
  process.once('SIGTERM', () => leave('SIGTERM'))
  process.once('SIGINT', () => leave('SIGINT'))
  const engine = await createEngine(boot.engine)
  const server = await serveCell({
    ...boot,
    cellId: cellId(boot.cellId),
    engine,
    log: options.log,
    onCrash: () => leave('its engine crashed', 1),
  })
  end = async () => {
    await server.close()
    await engine.close()
    await removeEmptyFolder(server.address)
  }
}

const nothing = async (): Promise<void> => undefined

interface Owner {
  readonly firstLine: Promise<string>
  readonly gone: Promise<void>
}

function followOwner(stdin: Readable): Owner {
  const lines = createInterface({ input: stdin })
  const gone = new Promise<void>((resolve) => lines.once('close', resolve))
  const firstLine = new Promise<string>((resolve, reject) => {
    const timer = setTimeout(() => reject(bootError(`no first line came within ${BOOT_MS} ms`)), BOOT_MS)
    lines.once('line', (line) => {
      clearTimeout(timer)
      resolve(line)
    })
    lines.once('close', () => {
      clearTimeout(timer)
      reject(bootError('standard input ended before its first line'))
    })
  })
  return { firstLine, gone }
}

function parseBoot(line: string): CellBoot {
  try {
    return bootSchema.parse(JSON.parse(line))
  } catch (cause) {
    throw bootError(`its first line is not valid: ${errorText(cause)}`)
  }
}

/** After a kill of the owner the last cell removes the run's socket folder; it fails while others use it. */
async function removeEmptyFolder(address: string): Promise<void> {
  if (address.startsWith('/')) await rmdir(dirname(address)).catch(() => undefined)
}

const bootError = (why: string): GyreError =>
  new GyreError(`a cell process is started by gyre itself: ${why}`, { boundary: 'cell', code: 'E_CELL_BOOT' })
