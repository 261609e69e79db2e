/** @file Groups and executions of a run: names, task order, and the rows the store keeps of them. */
import { type ExecutionId, executionId, type GroupId, groupId, queryId } from '../core/ids.ts'
import { hashSeed, seededRng, shuffled } from '../core/rng.ts'
import type { ExecutionRow, GroupRow, Store } from '../ports/store.ts'
import type { Task } from '../ports/task.ts'

/** `g0007-3.1`: group 7, member 3, attempt 1. */
export function nameExecution(group: GroupId, member: number, attempt: number): ExecutionId {
  return executionId(`${group}-${member}.${attempt}`)
}

export function queuedRow(group: GroupId, member: number, attempt: number): ExecutionRow {
  return {
    executionId: nameExecution(group, member, attempt),
    groupId: group,
    member,
    attempt,
    state: 'queued',
    outcome: undefined,
    reward: undefined,
    parts: {},
    errorCode: undefined,
    errorMessage: undefined,
    startedAtMs: undefined,
    endedAtMs: undefined,
  }
}

/** The present attempt of every member of a group, by member. */
export function presentAttempts(rows: readonly ExecutionRow[]): readonly ExecutionRow[] {
  const latest = new Map<number, ExecutionRow>()
  for (const row of rows) {
    const held = latest.get(row.member)
    if (held === undefined || held.attempt < row.attempt) latest.set(row.member, row)
  }
  return [...latest.values()].toSorted((a, b) => a.member - b.member)
}

/**
 * Deals tasks in a seeded order, each once per pass over the set. Its place in the order is the number of
 * groups in the store, so a resumed run goes on with the task it would have come to.
 */
export class GroupLedger {
  readonly #store: Store
  readonly #tasks: readonly Task[]
  readonly #byName: ReadonlyMap<string, Task>
  readonly #seed: number
  readonly #groupSize: number
  #created: number

  constructor(store: Store, tasks: readonly Task[], seed: number, groupSize: number) {
    this.#store = store
    this.#tasks = tasks
    this.#byName = new Map(tasks.map((task) => [task.name, task]))
    this.#seed = seed
    this.#groupSize = groupSize
    this.#created = store.groups().filter((row) => row.state !== 'evaluation').length
  }

  create(count: number, dispatchVersion: number, burst: number): { row: GroupRow; members: readonly ExecutionRow[] }[] {
    return Array.from({ length: count }, () => {
      const cursor = this.#created++
      const task = this.#taskAt(cursor)
      const id = groupId(`g${String(cursor).padStart(4, '0')}`)
      const row: GroupRow = {
        groupId: id,
        queryId: queryId(task.name),
        taskName: task.name,
        dispatchVersion,
        burst,
        state: 'dispatched',
        consumedStep: undefined,
      }
      const members = Array.from({ length: this.#groupSize }, (_, member) => queuedRow(id, member, 0))
      this.#store.putGroup(row, members)
      return { row, members }
    })
  }

  taskNamed(name: string): Task | undefined {
    return this.#byName.get(name)
  }

  #taskAt(cursor: number): Task {
    const pass = Math.floor(cursor / this.#tasks.length)
    const order = shuffled(this.#tasks, seededRng(hashSeed('task-order', this.#seed, pass)))
    return order[cursor % this.#tasks.length] as Task
  }
}
