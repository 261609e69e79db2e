/** @file Opens the SQLite store in a folder, for the contract and for the child process it kills. */
import { join } from 'node:path'
import type { Store } from '../../../ports/store.ts'
import { openSqliteStore } from './sqlite-store.ts'

export function openForCrash(folder: string): Store {
  return openSqliteStore(join(folder, 'ledger.sqlite'))
}
