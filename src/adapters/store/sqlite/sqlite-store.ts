/**
 * @file The Store port in one SQLite file.
 *
 * Invariant "committed or absent": every public method is one transaction. Calls that arrive in the same turn of
 * the event loop share one, and each resolves only after its commit. A record that finds the disk full waits for space:
 * whoever waits for its record is served late, not refused.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { GyreError, hasCode } from '../../../core/errors.ts'
import type { CallId, ExecutionId, GroupId } from '../../../core/ids.ts'
import type { CheckpointRow, ExecutionRow, GroupRow, LeafRow, StepRow, Store } from '../../../ports/store.ts'
import type { CallRecord, TreeNode } from '../../../trajectory/node.ts'
import { Connection, type Durability, lockLedger, sql } from './connection.ts'
import * as rows from './rows.ts'

export interface SqliteStoreOptions {
  /**
   * `read` never writes, needs no lock, and works while another process writes.
   * `write` creates what is missing and holds the ledger alone. Default `write`.
   */
  readonly access?: 'write' | 'read'
  /** Default `process`: safe against kill -9. `power` waits for the disk at every commit. */
  readonly durability?: Durability
  /** How long a record waits for space on a full disk before it fails. [ms] Default 30 minutes. */
  readonly patienceMs?: number
  /** A record waits because the disk is full, and is written again after so long. [ms] */
  readonly onFull?: (error: GyreError, retryInMs: number) => void
}

const PATIENCE_MS = 30 * 60_000
const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 10_000

/**
 * Opens the ledger at `path`, creating the file and its folder when they are missing.
 * @throws GyreError E_STORE_OPEN, E_STORE_SCHEMA, E_STORE_LOCKED. Later calls: E_STORE_DISK, E_STORE_BUSY, E_STORE_CONFLICT.
 */
export function openSqliteStore(path: string, options: SqliteStoreOptions = {}): Store {
  const { access = 'write', durability = 'process', patienceMs = PATIENCE_MS, onFull = () => undefined } = options
  const waiting = { patienceMs, onFull }
  // The file first: it makes the folder and says best what is wrong with it.
  const connection = new Connection({ path, access, durability })
  if (access === 'read') return new SqliteStore(connection, () => undefined, waiting)
  try {
    const lock = lockLedger(path)
    return new SqliteStore(connection, () => lock.release(), waiting)
  } catch (error) {
    connection.close()
    throw error
  }
}

interface PendingCall {
  readonly record: CallRecord
  resolve(): void
  reject(error: unknown): void
}

class SqliteStore implements Store {
  readonly #db: Connection
  readonly #release: () => void
  readonly #waiting: Required<Pick<SqliteStoreOptions, 'patienceMs' | 'onFull'>>
  #pending: PendingCall[] = []
  /** While the disk is full: since when, and how long it waits for the next try. */
  #full: { readonly sinceMs: number; readonly pauseMs: number; readonly timer: NodeJS.Timeout } | undefined
  #isClosed = false

  constructor(
    connection: Connection,
    release: () => void,
    waiting: Required<Pick<SqliteStoreOptions, 'patienceMs' | 'onFull'>>,
  ) {
    this.#db = connection
    this.#release = release
    this.#waiting = waiting
  }

  setMeta(key: string, value: string): void {
    const row = { key: JSON.stringify(key), value: JSON.stringify(value) }
    this.#db.run(
      sql
        .insertInto('meta')
        .values(row)
        .onConflict((c) => c.column('key').doUpdateSet({ value: row.value })),
    )
  }

  getMeta(key: string): string | undefined {
    const found = this.#db.all(sql.selectFrom('meta').select('value').where('key', '=', JSON.stringify(key)))[0]
    return found === undefined ? undefined : (JSON.parse(found.value) as string)
  }

  putGroup(group: GroupRow, members: readonly ExecutionRow[]): void {
    const row = rows.groupToRow(group)
    this.#db.transaction(() => {
      this.#refuseConsumed(group.groupId)
      this.#db.run(
        sql
          .insertInto('groups')
          .values(row)
          .onConflict((c) => c.column('group_id').doUpdateSet(row)),
      )
      for (const member of members) this.#writeExecution(member)
    })
  }

  setGroupState(groupId: GroupId, state: GroupRow['state']): void {
    this.#db.transaction(() => {
      this.#refuseConsumed(groupId)
      const changed = this.#db.run(sql.updateTable('groups').set({ state }).where('group_id', '=', groupId))
      if (changed === 0) throw conflict(`group ${groupId} is not in the store`)
    })
  }

  putExecution(execution: ExecutionRow): void {
    this.#writeExecution(execution)
  }

  groups(): readonly GroupRow[] {
    return this.#db.all(sql.selectFrom('groups').selectAll().orderBy('ordinal')).map(rows.groupFromRow)
  }

  executions(groupId?: GroupId): readonly ExecutionRow[] {
    const all = sql.selectFrom('executions').selectAll()
    const query =
      groupId === undefined
        ? all.orderBy('ordinal')
        : all.where('group_id', '=', groupId).orderBy('member').orderBy('attempt')
    return this.#db.all(query).map(rows.executionFromRow)
  }

  execution(executionId: ExecutionId): ExecutionRow | undefined {
    const found = this.#db.all(sql.selectFrom('executions').selectAll().where('execution_id', '=', executionId))[0]
    return found === undefined ? undefined : rows.executionFromRow(found)
  }

  async appendCall(record: CallRecord): Promise<void> {
    if (this.#isClosed) throw conflict(`call ${record.callId} came after the store was closed`)
    await new Promise<void>((resolve, reject) => {
      this.#pending.push({ record, resolve, reject })
      if (this.#pending.length === 1 && this.#full === undefined) setImmediate(() => this.#flush())
    })
  }

  async markOrphan(executionId: ExecutionId, callId: CallId): Promise<void> {
    const { patienceMs, onFull } = this.#waiting
    const endsAt = performance.now() + patienceMs
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      try {
        this.#markOrphan(executionId, callId)
        return
      } catch (error) {
        if (!hasCode(error, 'E_STORE_DISK') || this.#isClosed || performance.now() + pauseMs > endsAt) throw error
        onFull(error, pauseMs)
      }
      await sleep(pauseMs)
    }
  }

  #markOrphan(executionId: ExecutionId, callId: CallId): void {
    this.#flush()
    const known = this.#db.all(
      sql.selectFrom('calls').select('call_id').where('call_id', '=', callId).where('execution_id', '=', executionId),
    )
    if (known.length === 0) throw conflict(`call ${callId} of execution ${executionId} is not in the store`)
    this.#db.run(
      sql
        .updateTable('nodes')
        .set({ status: 'orphan' })
        .where('execution_id', '=', executionId)
        .where('call_id', '=', callId)
        .where('status', '=', 'committed'),
    )
  }

  calls(executionId: ExecutionId): readonly CallRecord[] {
    this.#flush()
    const nodes = this.#db.all(
      sql.selectFrom('nodes').selectAll().where('execution_id', '=', executionId).orderBy('node_id'),
    )
    const byCall = new Map<string, TreeNode[]>()
    for (const row of nodes) {
      const siblings = byCall.get(row.call_id) ?? []
      siblings.push(rows.nodeFromRow(row))
      byCall.set(row.call_id, siblings)
    }
    return this.#db
      .all(sql.selectFrom('calls').selectAll().where('execution_id', '=', executionId).orderBy('sequence'))
      .map((row) => rows.callFromRow(row, byCall.get(row.call_id) ?? []))
  }

  putLeaves(executionId: ExecutionId, leaves: readonly LeafRow[]): void {
    this.#db.transaction(() => {
      this.#db.run(sql.deleteFrom('leaves').where('execution_id', '=', executionId))
      for (const leaf of leaves) this.#db.run(sql.insertInto('leaves').values(rows.leafToRow(leaf)))
    })
  }

  leaves(executionId: ExecutionId): readonly LeafRow[] {
    return this.#db
      .all(sql.selectFrom('leaves').selectAll().where('execution_id', '=', executionId).orderBy('leaf'))
      .map(rows.leafFromRow)
  }

  commitCheckpoint(checkpoint: CheckpointRow, steps: readonly StepRow[]): void {
    this.#db.transaction(() => {
      for (const step of steps) {
        this.#db.run(sql.insertInto('steps').values(rows.stepToRow(step)))
        for (const groupId of step.groups) {
          this.#refuseConsumed(groupId)
          const changed = this.#db.run(
            sql
              .updateTable('groups')
              .set({ state: 'consumed', consumed_step: step.step })
              .where('group_id', '=', groupId),
          )
          if (changed === 0) throw conflict(`step ${step.step} consumed group ${groupId}, which is not in the store`)
        }
      }
      this.#db.run(sql.insertInto('checkpoints').values(rows.checkpointToRow(checkpoint)))
    })
  }

  steps(): readonly StepRow[] {
    return this.#db.all(sql.selectFrom('steps').selectAll().orderBy('step')).map(rows.stepFromRow)
  }

  latestCheckpoint(): CheckpointRow | undefined {
    const found = this.#db.all(sql.selectFrom('checkpoints').selectAll().orderBy('step', 'desc').limit(1))[0]
    return found === undefined ? undefined : rows.checkpointFromRow(found)
  }

  close(): void {
    if (this.#isClosed) return
    this.#flush()
    this.#isClosed = true
    // The last try is over: what still found no space was acknowledged to nobody.
    clearTimeout(this.#full?.timer)
    for (const call of this.#pending.splice(0)) call.reject(conflict('the store was closed before the disk had space'))
    this.#db.close()
    this.#release()
  }

  #writeExecution(execution: ExecutionRow): void {
    const row = rows.executionToRow(execution)
    this.#db.run(
      sql
        .insertInto('executions')
        .values(row)
        .onConflict((c) => c.column('execution_id').doUpdateSet(row)),
    )
  }

  /** A consumed group is part of weights that exist: nothing may change it, least of all a second step. */
  #refuseConsumed(groupId: GroupId): void {
    const found = this.#db.all(
      sql.selectFrom('groups').select(['state', 'consumed_step']).where('group_id', '=', groupId),
    )[0]
    if (found?.state === 'consumed') {
      throw conflict(`group ${groupId} was already consumed by step ${found.consumed_step}`)
    }
  }

  /**
   * Commits what is pending in one transaction; when that fails, one by one, so a bad record harms no other. While the
   * disk is full all of it waits, in order.
   * @param pauseMs until the next try when the disk is still full.
   */
  #flush(pauseMs: number = this.#full?.pauseMs ?? FIRST_PAUSE_MS): void {
    const batch = this.#pending
    if (batch.length === 0) return
    this.#pending = []
    try {
      this.#db.transaction(() => batch.forEach((call) => this.#insertCall(call.record)))
    } catch (error) {
      if (hasCode(error, 'E_STORE_DISK')) this.#wait(batch, error, pauseMs)
      else if (batch.length === 1) batch[0]?.reject(error)
      else this.#commitEach(batch, pauseMs)
      return
    }
    this.#foundSpace()
    for (const call of batch) call.resolve()
  }

  #commitEach(batch: readonly PendingCall[], pauseMs: number): void {
    for (const [index, call] of batch.entries()) {
      try {
        this.#db.transaction(() => this.#insertCall(call.record))
        call.resolve()
      } catch (error) {
        if (hasCode(error, 'E_STORE_DISK')) return this.#wait(batch.slice(index), error, pauseMs)
        call.reject(error)
      }
    }
    this.#foundSpace()
  }

  /** Nothing of the batch was written. It is tried again, or given up when that went on for too long. */
  #wait(batch: readonly PendingCall[], error: GyreError, pauseMs: number): void {
    const { patienceMs, onFull } = this.#waiting
    const now = performance.now()
    const sinceMs = this.#full?.sinceMs ?? now
    clearTimeout(this.#full?.timer)
    if (now - sinceMs + pauseMs > patienceMs) {
      this.#full = undefined
      for (const call of batch) call.reject(error)
      return
    }
    this.#pending = [...batch, ...this.#pending]
    const timer = setTimeout(() => this.#flush(Math.min(2 * pauseMs, LONGEST_PAUSE_MS)), pauseMs)
    this.#full = { sinceMs, pauseMs, timer }
    onFull(error, pauseMs)
  }

  #foundSpace(): void {
    clearTimeout(this.#full?.timer)
    this.#full = undefined
  }

  #insertCall(record: CallRecord): void {
    this.#db.run(sql.insertInto('calls').values(rows.callToRow(record)))
    for (const node of record.nodes) this.#db.run(sql.insertInto('nodes').values(rows.nodeToRow(record, node)))
  }
}

function conflict(message: string): GyreError {
  return new GyreError(message, { boundary: 'store', code: 'E_STORE_CONFLICT' })
}
