/** @file The books of a run in memory that outlives its control process: durable when a call returns. */
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import type { CheckpointRow, ExecutionRow, GroupRow, LeafRow, StepRow, Store } from '../../src/ports/store.ts'
import type { CallRecord } from '../../src/trajectory/node.ts'

export class SimBooks implements Store {
  readonly #meta = new Map<string, string>()
  readonly #groups = new Map<GroupId, GroupRow>()
  readonly #executions = new Map<ExecutionId, ExecutionRow>()
  readonly #byGroup = new Map<GroupId, Set<ExecutionId>>()
  readonly #accuse: (problem: string) => void
  #steps: readonly StepRow[] = []
  #checkpoint: CheckpointRow | undefined

  constructor(accuse: (problem: string) => void) {
    this.#accuse = accuse
  }

  setMeta(key: string, value: string): void {
    this.#meta.set(key, value)
  }

  getMeta(key: string): string | undefined {
    return this.#meta.get(key)
  }

  putGroup(row: GroupRow, members: readonly ExecutionRow[]): void {
    if (this.#groups.has(row.groupId)) this.#accuse(`group ${row.groupId} is made twice`)
    this.#groups.set(row.groupId, row)
    for (const member of members) this.putExecution(member)
  }

  setGroupState(groupId: GroupId, state: GroupRow['state']): void {
    const row = this.#groups.get(groupId)
    if (row !== undefined) this.#groups.set(groupId, { ...row, state })
  }

  putExecution(row: ExecutionRow): void {
    this.#executions.set(row.executionId, row)
    const ids = this.#byGroup.get(row.groupId) ?? new Set()
    this.#byGroup.set(row.groupId, ids.add(row.executionId))
  }

  groups(): readonly GroupRow[] {
    return [...this.#groups.values()]
  }

  executions(groupId?: GroupId): readonly ExecutionRow[] {
    if (groupId === undefined) return [...this.#executions.values()]
    return [...(this.#byGroup.get(groupId) ?? [])].map((id) => this.#executions.get(id) as ExecutionRow)
  }

  execution(executionId: ExecutionId): ExecutionRow | undefined {
    return this.#executions.get(executionId)
  }

  calls(): readonly CallRecord[] {
    return []
  }

  appendCall(): Promise<void> {
    return Promise.resolve()
  }

  markOrphan(): Promise<void> {
    return Promise.resolve()
  }

  putLeaves(): void {}

  leaves(): readonly LeafRow[] {
    return []
  }

  commitCheckpoint(checkpoint: CheckpointRow, steps: readonly StepRow[]): void {
    const since = this.#checkpoint?.step ?? 0
    const numbers = steps.map((row) => row.step)
    const expected = Array.from({ length: checkpoint.step - since }, (_, i) => since + i + 1)
    if (numbers.join() !== expected.join()) {
      this.#accuse(`checkpoint ${checkpoint.step} after ${since} brings steps ${numbers.join() || 'none'}`)
    }
    for (const { step, groups } of steps) {
      for (const id of groups) {
        const group = this.#groups.get(id)
        if (group === undefined || group.state === 'consumed') this.#accuse(`step ${step} consumes ${id} again`)
        else this.#groups.set(id, { ...group, state: 'consumed', consumedStep: step })
      }
    }
    this.#steps = [...this.#steps, ...steps]
    this.#checkpoint = checkpoint
  }

  steps(): readonly StepRow[] {
    return this.#steps
  }

  latestCheckpoint(): CheckpointRow | undefined {
    return this.#checkpoint
  }

  close(): void {}
}
