/** @file Cell processes for tests. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { CellProcessSupervisor } from '../../src/adapters/cell/process/supervisor.ts'
import type { CellSupervisorOptions } from '../../src/adapters/cell/process/supervisor.ts'
import type { BigramOptions } from './bigram-engine.ts'

/** Starts cell processes with the bigram engine; `close` also removes their logs. */
export async function startBigramCells(
  count: number,
  engine: BigramOptions,
  options: Partial<CellSupervisorOptions> = {},
): Promise<{ readonly supervisor: CellProcessSupervisor; readonly folder: string; close(): Promise<void> }> {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-test-'))
  const remove = (): void => rmSync(folder, { recursive: true, force: true })
  try {
    const supervisor = await CellProcessSupervisor.start({
      count,
      slots: 4,
      argv: [process.execPath, '--import', 'tsx', resolve(import.meta.dirname, 'bigram-cell.ts')],
      engine: () => ({ ...engine }),
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
