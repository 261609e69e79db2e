/** @file Groups and executions of a run: names, task order, and the rows the store keeps of them. */
import { GyreError } from '../core/errors.ts'
import { type ExecutionId, executionId, type GroupId, groupId, queryId } from '../core/ids.ts'
import { hashSeed, seededRng, shuffled } from '../core/rng.ts'
import type { ExecutionRow, GroupRow, Store } from '../ports/store.ts'
import type { Task } from '../ports/task.ts'
import { parkedTasks, type ParkedTask, parkIfPoison } from './parked-tasks.ts'

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
 * Deals tasks in a seeded order, each once per pass over the set, parked ones left out. Its place in the order follows
 * from the groups in the store, so a resumed run goes on with the task it would have come to.
 */
export class GroupLedger {
  readonly #store: Store
  readonly #tasks: readonly Task[]
  readonly #byName: ReadonlyMap<string, Task>
  readonly #seed: number
  readonly #groupSize: number
  readonly #poisonLimit: number
  readonly #orders = new Map<number, readonly Task[]>()
  #created: number
  /** Of the next task in the endless order of passes, before parked ones are left out. */
  #place = 0

  /** @param poisonLimit groups of one task lost in a row before it is dealt no more; 0 never parks. */
  constructor(store: Store, tasks: readonly Task[], seed: number, groupSize: number, poisonLimit: number) {
    this.#store = store
    this.#tasks = tasks
    this.#byName = new Map(tasks.map((task) => [task.name, task]))
    this.#seed = seed
    this.#groupSize = groupSize
    this.#poisonLimit = poisonLimit
    const groups = store.groups().filter((row) => row.state !== 'evaluation')
    this.#created = groups.length
    for (const { taskName } of groups) this.#place = this.#placeOf(taskName) + 1
    // What the last process learned of a group and was killed before it could act on.
    for (const group of groups) if (group.state === 'dispatched') this.close(group.groupId)
    for (const { taskName } of groups) this.#park(taskName)
  }

  /** @throws GyreError E_TASK_ALL_PARKED when no task is left to deal. */
  create(count: number, dispatchVersion: number, burst: number): { row: GroupRow; members: readonly ExecutionRow[] }[] {
    return Array.from({ length: count }, () => {
      const task = this.#next()
      const id = groupId(`g${String(this.#created++).padStart(4, '0')}`)
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

  /**
   * Marks the group as excluded when all of its members have ended and fewer than two are scored, and parks its task
   * when that was once too often.
   * @returns the task when it was parked now.
   */
  close(id: GroupId): ParkedTask | undefined {
    const members = presentAttempts(this.#store.executions(id))
    if (!members.every(isResolved) || hasSignal(members)) return undefined
    this.#store.setGroupState(id, 'excluded')
    const group = this.#store.groups().find((row) => row.groupId === id)
    return group === undefined ? undefined : this.#park(group.taskName)
  }

  #park(taskName: string): ParkedTask | undefined {
    return this.#poisonLimit === 0 ? undefined : parkIfPoison(this.#store, taskName, this.#poisonLimit)
  }

  #next(): Task {
    const parked = parkedTasks(this.#store)
    const names = new Set(parked.map((one) => one.task))
    for (let tries = 0; tries < 2 * this.#tasks.length; tries++) {
      const task = this.#taskAt(this.#place++)
      if (!names.has(task.name)) return task
    }
    throw new GyreError(
      `every task is parked, so there is nothing left to train on: ${parked.map((one) => `${one.task} (${one.reason})`).join('; ')}`,
      { boundary: 'task', code: 'E_TASK_ALL_PARKED' },
    )
  }

  /** The place at which a group of this task was dealt next; the present one when the task set has changed since. */
  #placeOf(taskName: string): number {
    const places = Array.from({ length: 2 * this.#tasks.length }, (_, i) => this.#place + i)
    return places.find((place) => this.#taskAt(place).name === taskName) ?? this.#place
  }

  #taskAt(place: number): Task {
    const pass = Math.floor(place / this.#tasks.length)
    return this.#orderOf(pass)[place % this.#tasks.length] as Task
  }

  #orderOf(pass: number): readonly Task[] {
    const known = this.#orders.get(pass)
    if (known !== undefined) return known
    const order = shuffled(this.#tasks, seededRng(hashSeed('task-order', this.#seed, pass)))
    this.#orders.set(pass, order)
    return order
  }
}

function isResolved({ state, outcome }: ExecutionRow): boolean {
  return (state === 'scored' || state === 'excluded') && outcome !== 'interrupted'
}

/** Two scored executions make an advantage; a group of one is its own. */
function hasSignal(members: readonly ExecutionRow[]): boolean {
  return members.filter((row) => row.state === 'scored').length >= Math.min(2, members.length)
}
