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

/** Runs a script in a process that may write files of so many KiB, and gives what it printed. */
function withSmallDisk(kib: number, script: string, path: string): string {
  const limited = ['-c', `ulimit -S -f ${kib}; exec "$@"`, 'bash']
  const node = [process.execPath, '--import', 'tsx', '--input-type=module', '-e']
  return execFileSync('bash', [...limited, ...node, script, path], {
    encoding: 'utf8',
    cwd: join(import.meta.dirname, '../../../..'),
  })
}

// A limit on file size stands in for the full disk: the kernel refuses the write in both cases.
describe('a full disk', () => {
  test('is E_STORE_DISK once the patience is over, and what was committed before stays', () => {
    const path = join(root, 'full/ledger.sqlite')
    const script = `
      import { openSqliteStore } from './src/adapters/store/sqlite/sqlite-store.ts'
      import { expectedCall } from './src/ports/store-crash.contract.ts'
      const store = openSqliteStore(process.argv[1], { patienceMs: 300 })
      for (let n = 0; n < 1000; n++) {
        try { await store.appendCall(expectedCall(n)) }
        catch (error) { console.log(JSON.stringify({ n, code: error.code, retryable: error.retryable })); break }
      }
      process.exit(0)`
    const { n, ...failure } = JSON.parse(withSmallDisk(1024, script, path)) as { n: number }
    expect(failure).toEqual({ code: 'E_STORE_DISK', retryable: true })
    const store = openSqliteStore(path)
    for (let i = 0; i < n; i++) expect(store.calls(expectedCall(i).executionId)).toEqual([expectedCall(i)])
    expect(store.calls(expectedCall(n).executionId)).toEqual([])
    store.close()
  })

  test.skipIf(!existsSync('/usr/bin/prlimit'))('is waited for: nothing is acknowledged before it is written', () => {
    const path = join(root, 'waits/ledger.sqlite')
    const script = `
      import { execFileSync } from 'node:child_process'
      import { setTimeout as sleep } from 'node:timers/promises'
      import { openSqliteStore } from './src/adapters/store/sqlite/sqlite-store.ts'
      import { expectedCall } from './src/ports/store-crash.contract.ts'
      let waits = 0
      const store = openSqliteStore(process.argv[1], { onFull: () => waits++ })
      const kept = []
      const calls = Array.from({ length: 40 }, async (_, n) => {
        await sleep(5 * n)
        await store.appendCall(expectedCall(n))
        kept.push(n)
      })
      await sleep(1000)
      const before = kept.length
      const written = kept.filter((n) => store.calls(expectedCall(n).executionId).length === 1).length
      const waitsThen = waits
      execFileSync('prlimit', ['--pid', String(process.pid), '--fsize=unlimited:unlimited'])
      await Promise.all(calls)
      const inOrder = kept.every((n, i) => n === i)
      console.log(JSON.stringify({ before, written, waited: waitsThen > 1, after: kept.length, inOrder }))
      process.exit(0)`
    const told = JSON.parse(withSmallDisk(1024, script, path)) as { before: number; written: number }
    expect(told).toMatchObject({ waited: true, after: 40, inOrder: true })
    expect(told.before).toBeLessThan(40)
    expect(told.written).toBe(told.before)
    const store = openSqliteStore(path)
    for (let i = 0; i < 40; i++) expect(store.calls(expectedCall(i).executionId)).toEqual([expectedCall(i)])
    store.close()
  })
})
