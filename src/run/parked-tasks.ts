/**
 * @file Tasks that are not dealt any more, because their last groups were all lost: a poison task (one that breaks its
 * harness, its sandbox or its scorer) would otherwise cost a group every time its turn comes.
 *
 * What is parked is in the store and stays parked; why is derived from the executions of the lost groups.
 */
import type { GroupRow, Store } from '../ports/store.ts'

export interface ParkedTask {
  readonly task: string
  /** Lost one after the other. */
  readonly groups: readonly string[]
  /** What kept their executions from a score, most frequent first. */
  readonly reason: string
}

const META = 'parked-tasks'

/** In the order they were parked. */
export function parkedTasks(store: Pick<Store, 'getMeta'>): readonly ParkedTask[] {
  return JSON.parse(store.getMeta(META) ?? '[]') as readonly ParkedTask[]
}

/**
 * Parks a task whose last `limit` groups that came to an end were all lost. Idempotent.
 * @returns it when it was parked now.
 */
export function parkIfPoison(store: Store, task: string, limit: number): ParkedTask | undefined {
  const parked = parkedTasks(store)
  if (parked.some((other) => other.task === task)) return undefined
  const ended = store.groups().filter((group) => group.taskName === task && hasEnded(group))
  const last = ended.slice(-limit)
  if (last.length < limit || last.some((group) => group.state !== 'excluded')) return undefined
  const groups = last.map((group) => group.groupId)
  const found = { task, groups, reason: reasonOf(store, last) }
  store.setMeta(META, JSON.stringify([...parked, found]))
  return found
}

function hasEnded({ state }: GroupRow): boolean {
  return state === 'excluded' || state === 'ready' || state === 'consumed'
}

function reasonOf(store: Store, groups: readonly GroupRow[]): string {
  const codes = groups.flatMap((group) => store.executions(group.groupId)).flatMap((row) => row.errorCode ?? [])
  const counts = new Map<string, number>()
  for (const code of codes) counts.set(code, (counts.get(code) ?? 0) + 1)
  const sorted = [...counts].toSorted(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))
  const lost = `${groups.length} groups in a row had fewer than two scored executions`
  return sorted.length === 0 ? lost : `${lost}: ${sorted.map(([code, count]) => `${count} ${code}`).join(', ')}`
}
