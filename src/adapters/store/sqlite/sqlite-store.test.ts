import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Database from 'libsql'
import { afterAll, describe, expect, test } from 'vitest'
import { storeContract } from '../../../ports/store.contract.ts'
import { expectedCall, expectedGroup } from '../../../ports/store-crash.contract.ts'
import { isLedgerInUse } from './connection.ts'
import { openForCrash } from './opener.contract.ts'
import { openSqliteStore } from './sqlite-store.ts'

storeContract('sqlite', { open: openForCrash, openerModule: new URL('./opener.contract.ts', import.meta.url).href })

const root = mkdtempSync(join(tmpdir(), 'gyre-sqlite-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))
const coded = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, boundary: 'store', message: expect.stringMatching(message) as string })

describe('opening a ledger', () => {
  test('creates its folder', () => {
    const path = join(root, 'a/b/ledger.sqlite')
    openSqliteStore(path).close()
    expect(existsSync(path)).toBe(true)
  })

  test('refuses a folder that cannot be made, and says what to do', () => {
    writeFileSync(join(root, 'file'), '')
    const open = (): unknown => openSqliteStore(join(root, 'file/run/ledger.sqlite'))
    expect(open).toThrow(coded('E_STORE_OPEN', /choose a writable one with paths\.runs=/))
  })

  test('refuses a path that is a folder', () => {
    expect(() => openSqliteStore(root)).toThrow(coded('E_STORE_OPEN', /file/))
  })

  test('refuses a file that is not a database and leaves it alone', () => {
    const path = join(root, 'garbage.sqlite')
    writeFileSync(path, 'not a database, a letter to the reader '.repeat(100))
    expect(() => openSqliteStore(path)).toThrow(coded('E_STORE_OPEN', /not an SQLite database/))
  })

  test('refuses a database of another program', () => {
    const path = join(root, 'other.sqlite')
    const other = new Database(path)
    other.exec('create table theirs(x)')
    other.close()
    expect(() => openSqliteStore(path)).toThrow(coded('E_STORE_SCHEMA', /another program/))
  })

  test('refuses the schema of a newer gyre', () => {
    const path = join(root, 'newer.sqlite')
    openSqliteStore(path).close()
    const raw = new Database(path)
    raw.pragma('user_version = 99')
    raw.close()
    expect(() => openSqliteStore(path)).toThrow(coded('E_STORE_SCHEMA', /newer gyre .*99.*update/))
  })

  test('refuses a second writer until the first is closed', () => {
    const path = join(root, 'locked.sqlite')
    const first = openSqliteStore(path)
    expect(() => openSqliteStore(path)).toThrow(coded('E_STORE_LOCKED', /another gyre process/))
    expect(isLedgerInUse(path)).toBe(true)
    first.close()
    expect(isLedgerInUse(path)).toBe(false)
    openSqliteStore(path).close()
  })

  test('a reader sees commits while the writer goes on, and cannot write', async () => {
    const path = join(root, 'shared.sqlite')
    expect(() => openSqliteStore(path, { access: 'read' })).toThrow(coded('E_STORE_OPEN', /does not exist/))
    const writer = openSqliteStore(path)
    const reader = openSqliteStore(path, { access: 'read' })
    writer.putGroup(expectedGroup(0), [])
    await writer.appendCall(expectedCall(0))
    expect([reader.groups().length, reader.calls(expectedCall(0).executionId).length]).toEqual([1, 1])
    expect(() => reader.setMeta('a', 'b')).toThrow(coded('E_STORE_DISK', /cannot be written/))
    reader.close()
    writer.close()
  })
})

test('a full disk is E_STORE_DISK, and what was committed before stays', () => {
  const path = join(root, 'full/ledger.sqlite')
  // A limit on file size stands in for the full disk: the kernel refuses the write in both cases.
  const script = `
    import { openSqliteStore } from './src/adapters/store/sqlite/sqlite-store.ts'
    import { expectedCall } from './src/ports/store-crash.contract.ts'
    const store = openSqliteStore(process.argv[1])
    for (let n = 0; n < 1000; n++) {
      try { await store.appendCall(expectedCall(n)) }
      catch (error) { console.log(JSON.stringify({ n, code: error.code, retryable: error.retryable })); break }
    }
    process.exit(0)`
  const out = execFileSync(
    'bash',
    [
      '-c',
      'ulimit -f 1024; exec "$@"',
      'bash',
      process.execPath,
      '--import',
      'tsx',
      '--input-type=module',
      '-e',
      script,
      path,
    ],
    { encoding: 'utf8', cwd: join(import.meta.dirname, '../../../..') },
  )
  const { n, ...failure } = JSON.parse(out) as { n: number; code: string; retryable: boolean }
  expect(failure).toEqual({ code: 'E_STORE_DISK', retryable: true })
  const store = openSqliteStore(path)
  for (let i = 0; i < n; i++) expect(store.calls(expectedCall(i).executionId)).toEqual([expectedCall(i)])
  store.close()
})
