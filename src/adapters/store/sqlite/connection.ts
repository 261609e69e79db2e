/**
 * @file One synchronous SQLite connection: pragmas, migrations, prepared statements, transactions, errors.
 *
 * Queries are built and compiled by kysely, and executed here instead of by its driver, because the port's
 * transactions are synchronous: nothing else of the process can run between their statements.
 */
import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { DummyDriver, Kysely, SqliteAdapter, SqliteIntrospector, SqliteQueryCompiler, type Compilable } from 'kysely'
import Database from 'libsql'
import { GyreError, InvariantError, invariant } from '../../../core/errors.ts'
import { APPLICATION_ID, type LedgerTables, MIGRATIONS } from './schema.ts'

/** How long a statement waits for another process's lock. [ms] */
const BUSY_TIMEOUT_MS = 5000

/** Query builder only; it never touches a database. */
export const sql = new Kysely<LedgerTables>({
  dialect: {
    createAdapter: () => new SqliteAdapter(),
    createDriver: () => new DummyDriver(),
    createIntrospector: (db) => new SqliteIntrospector(db),
    createQueryCompiler: () => new SqliteQueryCompiler(),
  },
})

/**
 * `process`: a killed process loses nothing, because a commit is in the kernel's hands (WAL,
 * synchronous=NORMAL); losing power may lose the last moments but never the order or the form.
 * `power`: every commit also waits for the disk (synchronous=FULL).
 */
export type Durability = 'process' | 'power'

export interface ConnectionOptions {
  readonly path: string
  readonly access: 'write' | 'read'
  readonly durability: Durability
}

type Bound = string | number | null | Uint8Array

export class Connection {
  readonly #db: Database.Database
  readonly #path: string
  readonly #access: 'write' | 'read'
  readonly #statements = new Map<string, Database.Statement>()
  #open = true

  constructor(options: ConnectionOptions) {
    this.#path = options.path
    this.#access = options.access
    this.#db = openFile(options)
    this.#guard(() => {
      if (options.access === 'read') {
        this.#db.pragma('query_only = ON')
      } else {
        this.#db.pragma('journal_mode = WAL')
        this.#db.pragma(`synchronous = ${options.durability === 'power' ? 'FULL' : 'NORMAL'}`)
        this.#db.pragma('foreign_keys = ON')
      }
    }, 'open')
    this.#migrate()
  }

  /** Runs a statement; returns the number of rows it changed. */
  run(query: Compilable): number {
    const { sql: text, parameters } = query.compile()
    return this.#guard(() => this.#statement(text).run(bindable(parameters)).changes)
  }

  all<Row>(query: Compilable<Row>): Row[] {
    const { sql: text, parameters } = query.compile()
    return this.#guard(() => this.#statement(text).all(bindable(parameters)) as Row[])
  }

  /** All or nothing. Nothing asynchronous may happen inside. */
  transaction<T>(work: () => T): T {
    this.#guard(() => this.#db.exec('BEGIN IMMEDIATE'))
    let result: T
    try {
      result = work()
      this.#guard(() => this.#db.exec('COMMIT'))
    } catch (error) {
      // A full disk may already have rolled back.
      if (this.#db.inTransaction) this.#db.exec('ROLLBACK')
      throw error
    }
    return result
  }

  /** Folds the write-ahead log into the file. The driver keeps prepared statements alive, so this is not left to it. */
  close(): void {
    if (!this.#open) return
    this.#open = false
    this.#statements.clear()
    try {
      if (this.#access === 'write') this.#db.pragma('wal_checkpoint(TRUNCATE)')
    } catch {
      // The log stays beside the file and is read at the next open.
    }
    this.#db.close()
  }

  #statement(text: string): Database.Statement {
    let statement = this.#statements.get(text)
    if (statement === undefined) {
      statement = this.#db.prepare(text)
      this.#statements.set(text, statement)
    }
    return statement
  }

  #migrate(): void {
    const pragma = (name: string): number =>
      this.#guard(() => Number((this.#db.pragma(name) as Record<string, unknown>[])[0]?.[name] ?? 0), 'open')
    const version = pragma('user_version')
    const tables = this.#guard(
      () => this.#db.prepare("select name from sqlite_master where type = 'table'").all([]).length,
      'open',
    )
    const isEmpty = version === 0 && tables === 0
    if (!isEmpty && pragma('application_id') !== APPLICATION_ID) {
      throw schemaError(`${this.#path} is a database of another program: choose another run folder`, version)
    }
    if (version > MIGRATIONS.length) {
      const versions = `its schema is ${version}, this gyre reads up to ${MIGRATIONS.length}`
      throw schemaError(`${this.#path} was written by a newer gyre (${versions}): update gyre to open it`, version)
    }
    if (version === MIGRATIONS.length) return
    if (this.#access === 'read') {
      const what = isEmpty ? 'holds no run yet' : `has the older schema ${version}`
      throw schemaError(`${this.#path} ${what}: start it with gyre train first`, version)
    }
    this.transaction(() => {
      for (const migration of MIGRATIONS.slice(version)) {
        for (const statement of migration(sql)) this.#guard(() => this.#db.exec(statement.sql))
      }
      this.#guard(() => {
        this.#db.pragma(`application_id = ${APPLICATION_ID}`)
        this.#db.pragma(`user_version = ${MIGRATIONS.length}`)
      })
    })
  }

  #guard<T>(work: () => T, phase: 'open' | 'use' = 'use'): T {
    invariant(this.#open, `the store ${this.#path} is used after close`)
    try {
      return work()
    } catch (error) {
      throw storeError(error, this.#path, phase)
    }
  }
}

/**
 * Holds an exclusive lock on `path` + `.lock` until `release`, or until the process ends in any way: it is a lock
 * of the operating system, so a killed run never leaves a stale one.
 * @throws GyreError E_STORE_LOCKED when another process holds it.
 */
export function lockLedger(path: string): { release(): void } {
  const lockFile = `${path}.lock`
  // A moment of patience, for a reader that is asking whether the lock is held.
  const db = openDatabase(lockFile, 200)
  try {
    db.exec('BEGIN EXCLUSIVE')
  } catch (error) {
    db.close()
    if (codeOf(error).startsWith('SQLITE_BUSY')) {
      throw new GyreError(`${path} is in use by another gyre process: wait for it or stop it first`, {
        boundary: 'store',
        code: 'E_STORE_LOCKED',
        retryable: true,
        cause: error,
      })
    }
    throw storeError(error, lockFile, 'open')
  }
  let held = true
  return {
    release: () => {
      if (!held) return
      held = false
      db.exec('ROLLBACK')
      db.close()
    },
  }
}

/** True while some process holds the lock of the ledger at `path`: a run is going on. */
export function isLedgerInUse(path: string): boolean {
  const lockFile = `${path}.lock`
  if (!existsSync(lockFile)) return false
  const db = openDatabase(lockFile, 0)
  try {
    db.prepare('select count(*) from sqlite_master').all([])
    return false
  } catch (error) {
    return codeOf(error).startsWith('SQLITE_BUSY')
  } finally {
    db.close()
  }
}

function openFile(options: ConnectionOptions): Database.Database {
  if (options.access === 'read' && !existsSync(options.path)) {
    throw openError(options.path, 'it does not exist: check the run folder', undefined)
  }
  try {
    mkdirSync(dirname(options.path), { recursive: true })
  } catch (error) {
    throw openError(options.path, 'its folder cannot be created: choose a writable one with paths.runs=FOLDER', error)
  }
  return openDatabase(options.path, BUSY_TIMEOUT_MS)
}

function openDatabase(path: string, timeoutMs: number): Database.Database {
  try {
    return new Database(path, { timeout: timeoutMs })
  } catch (error) {
    throw openError(path, 'the folder must be writable and the file a file: choose one with paths.runs=FOLDER', error)
  }
}

function bindable(parameters: readonly unknown[]): Bound[] {
  return parameters.map((value) => {
    if (typeof value === 'string') {
      if (value.includes('\0')) throw new InvariantError('free text must be inside JSON before it is bound')
      return value
    }
    // The native driver aborts the whole process on any other type.
    if (typeof value === 'number' || value === null || value instanceof Uint8Array) return value
    throw new InvariantError(`a ${typeof value} cannot be bound`)
  })
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : ''
}

function openError(path: string, why: string, cause: unknown): GyreError {
  return new GyreError(`cannot open the store ${path}: ${why}`, { boundary: 'store', code: 'E_STORE_OPEN', cause })
}

function schemaError(message: string, version: number): GyreError {
  return new GyreError(message, { boundary: 'store', code: 'E_STORE_SCHEMA', details: { version } })
}

function storeError(error: unknown, path: string, phase: 'open' | 'use'): unknown {
  if (error instanceof GyreError) return error
  const code = codeOf(error)
  if (code.startsWith('SQLITE_BUSY') || code.startsWith('SQLITE_LOCKED')) {
    const message = `the store ${path} was locked by another process for over ${BUSY_TIMEOUT_MS} ms: stop that process`
    return new GyreError(message, { boundary: 'store', code: 'E_STORE_BUSY', retryable: true, cause: error })
  }
  if (code.startsWith('SQLITE_CONSTRAINT')) {
    const message = `the store ${path} already holds a different record under this id`
    return new GyreError(message, { boundary: 'store', code: 'E_STORE_CONFLICT', cause: error })
  }
  if (code.startsWith('SQLITE_NOTADB') || code.startsWith('SQLITE_CORRUPT')) {
    return openError(path, 'it is not an SQLite database or is damaged: move it away, or choose another run', error)
  }
  if (phase === 'open' && code.startsWith('SQLITE_')) {
    return openError(path, 'check that the file and its folder are writable', error)
  }
  if (/^SQLITE_(?:FULL|IOERR|READONLY|CANTOPEN|NOMEM)/.test(code)) {
    const message = `the store ${path} cannot be written: free disk space or check the disk, then resume the run`
    return new GyreError(message, { boundary: 'store', code: 'E_STORE_DISK', retryable: true, cause: error })
  }
  return error
}
