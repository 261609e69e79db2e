import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import { hasCode } from '../core/errors.ts'
import type { GroupId } from '../core/ids.ts'
import type { ExecutionRow, Store } from '../ports/store.ts'
import type { Task } from '../ports/task.ts'
import { GroupLedger } from './ledger.ts'
import { parkedTasks } from './parked-tasks.ts'

const SIZE = 4
const tasksNamed = (...names: readonly string[]): readonly Task[] =>
  names.map((name) => ({ name, folder: '/', instruction: 'go', agentTimeoutMs: 1, verifierTimeoutMs: 1 }))
const TASKS = tasksNamed('a', 'b', 'c', 'd', 'e')

let folder: string
let store: Store
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'gyre-ledger-'))
  store = openSqliteStore(join(folder, 'ledger.sqlite'))
})
afterEach(() => {
  store.close()
  rmSync(folder, { recursive: true, force: true })
})

const ledgerOf = (tasks = TASKS, limit = 2): GroupLedger => new GroupLedger(store, tasks, 7, SIZE, limit)

function deal(ledger: GroupLedger, count: number): { readonly id: GroupId; readonly task: string }[] {
  return ledger.create(count, 0, 0).map(({ row }) => ({ id: row.groupId, task: row.taskName }))
}

/** Ends all members of a group, with so many scores. */
function end(id: GroupId, scored: number, change: Partial<ExecutionRow> = {}): void {
  for (const row of store.executions(id)) {
    const isScored = row.member < scored
    const failed = { state: 'excluded', outcome: 'evaluation-failed', errorCode: 'E_SCORER_TIMEOUT' } as const
    store.putExecution({
      ...row,
      ...(isScored ? { state: 'scored', outcome: 'finished', reward: 1 } : failed),
      ...change,
    })
  }
}

/** Deals and loses every group of one task, and scores the others, until the task was lost so often. */
function lose(ledger: GroupLedger, victim: string, times: number): void {
  for (let lost = 0; lost < times;) {
    const [group] = deal(ledger, 1)
    if (group === undefined) throw new Error('nothing was dealt')
    end(group.id, group.task === victim ? 1 : SIZE)
    const parked = ledger.close(group.id)
    if (group.task !== victim) continue
    lost++
    expect(parked?.task).toBe(lost === 2 ? victim : undefined)
  }
}

describe('the ledger of groups', () => {
  test('deals every task once per pass, and a ledger opened later goes on in the same order', () => {
    const whole = deal(ledgerOf(), 15).map((group) => group.task)
    for (const pass of [0, 5, 10]) expect(whole.slice(pass, pass + 5).toSorted()).toEqual(['a', 'b', 'c', 'd', 'e'])
    const other = openSqliteStore(join(folder, 'other.sqlite'))
    const again: string[] = []
    while (again.length < 15) {
      const [dealt] = new GroupLedger(other, TASKS, 7, SIZE, 2).create(1, 0, 0)
      again.push(dealt?.row.taskName ?? '')
    }
    other.close()
    expect(again).toEqual(whole)
  })

  test('marks a group as excluded once all its members have ended with fewer than two scores', () => {
    const ledger = ledgerOf()
    const [lost, open, cut, good] = deal(ledger, 4)
    if (lost === undefined || open === undefined || cut === undefined || good === undefined) throw new Error('4')
    end(lost.id, 1)
    end(good.id, 2)
    end(cut.id, 0, { outcome: 'interrupted' })
    for (const { id } of [lost, open, cut, good]) ledger.close(id)
    expect(store.groups().map((group) => group.state)).toEqual(['excluded', 'dispatched', 'dispatched', 'dispatched'])
  })
})

describe('a task whose groups are lost in a row', () => {
  test('is parked: dealt no more, with the reason, and the others go on', () => {
    const ledger = ledgerOf()
    lose(ledger, 'c', 2)
    expect(deal(ledger, 20).map((group) => group.task)).not.toContain('c')
    const [parked, ...others] = parkedTasks(store)
    expect(others).toEqual([])
    expect(parked?.groups).toHaveLength(2)
    expect(parked?.reason).toBe('2 groups in a row had fewer than two scored executions: 6 E_SCORER_TIMEOUT')
  })

  test('is parked for good, also when an older group of it is scored later', () => {
    const ledger = ledgerOf(tasksNamed('a', 'b'))
    const dealt = deal(ledger, 8).filter((group) => group.task === 'a')
    for (const { id } of dealt.slice(1, 3)) {
      end(id, 0)
      ledger.close(id)
    }
    end(dealt[0]?.id as GroupId, SIZE)
    ledger.close(dealt[0]?.id as GroupId)
    expect(parkedTasks(store).map((one) => one.task)).toEqual(['a'])
    expect(deal(ledgerOf(tasksNamed('a', 'b')), 4).map((group) => group.task)).toEqual(['b', 'b', 'b', 'b'])
  })

  test('is not parked when a group in between was trained, nor with a limit of 0', () => {
    const ledger = ledgerOf(tasksNamed('a', 'b'), 2)
    const [first, second, third] = deal(ledger, 6).filter((group) => group.task === 'a')
    if (first === undefined || second === undefined || third === undefined) throw new Error('3')
    for (const { id } of [first, third]) end(id, 0)
    end(second.id, SIZE)
    store.commitCheckpoint({ step: 1, policyVersion: 1, burst: 0, folder: 'f' }, [
      { step: 1, burst: 0, groups: [second.id], metrics: {} },
    ])
    for (const { id } of [first, third]) ledger.close(id)
    expect(parkedTasks(store)).toEqual([])
    const never = ledgerOf(tasksNamed('a', 'b'), 0)
    for (const { id } of deal(never, 8)) {
      end(id, 0)
      expect(never.close(id)).toBeUndefined()
    }
  })

  test('is found by the next process when this one was killed before it could be parked', () => {
    const groups = deal(ledgerOf(tasksNamed('a', 'b')), 4).filter((group) => group.task === 'a')
    for (const { id } of groups) end(id, 0)
    const next = ledgerOf(tasksNamed('a', 'b'))
    expect(parkedTasks(store).map((one) => one.task)).toEqual(['a'])
    expect(deal(next, 3).map((group) => group.task)).toEqual(['b', 'b', 'b'])
  })

  test('changes nothing about the order of the others, whoever deals them', () => {
    const ledger = ledgerOf()
    lose(ledger, 'c', 2)
    const here = deal(ledger, 1)[0]?.task
    const order = [here]
    while (order.length < 12) order.push(deal(ledgerOf(), 1)[0]?.task)
    for (let at = 0; at + 8 <= order.length; at += 4) {
      expect(new Set(order.slice(at, at + 8))).toEqual(new Set(['a', 'b', 'd', 'e']))
    }
  })

  test('ends the run with all their names when no task is left', () => {
    const ledger = ledgerOf(tasksNamed('a', 'b'))
    for (const { id } of deal(ledger, 4)) {
      end(id, 0)
      ledger.close(id)
    }
    const dealing = (): unknown => deal(ledger, 1)
    expect(dealing).toThrow(/every task is parked.*[ab] \(2 groups.*E_SCORER_TIMEOUT\); [ab] \(2 groups/)
    try {
      dealing()
    } catch (error) {
      expect(hasCode(error, 'E_TASK_ALL_PARKED')).toBe(true)
    }
  })
})
