/** @file Cell processes for tests. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { CellProcessSupervisor } from '../../src/adapters/cell/process/supervisor.ts'
import type { CellSupervisorOptions } from '../../src/adapters/cell/process/supervisor.ts'
import type { BigramOptions } from './bigram-engine.ts'

export interface StartedCells {
  readonly supervisor: CellProcessSupervisor
  /** Of their logs; `close` removes it. */
  readonly folder: string
  close(): Promise<void>
}

/** Starts cell processes with the bigram engine. */
export async function startBigramCells(
  count: number,
  engine: BigramOptions,
  options: Partial<CellSupervisorOptions> = {},
): Promise<StartedCells> {
  return startCells('bigram-cell.ts', count, { engine: () => ({ ...engine }), ...options })
}

/** @param entry the cell's program, a file beside this one. */
export async function startCells(
  entry: string,
  count: number,
  options: Partial<CellSupervisorOptions> & Pick<CellSupervisorOptions, 'engine'>,
): Promise<StartedCells> {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-test-'))
  const remove = (): void => rmSync(folder, { recursive: true, force: true })
  try {
    const supervisor = await CellProcessSupervisor.start({
      count,
      slots: 4,
      argv: [process.execPath, '--import', 'tsx', resolve(import.meta.dirname, entry)],
      logFolder: folder,
      ...options,
    })
    const close = async (): Promise<void> => {
      await supervisor.close()
      remove()
    }
    return { supervisor, folder, close }
  } catch (error) {
    remove()
    throw error
  }
}
