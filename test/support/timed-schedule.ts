/** @file A schedule driven by hand, one event at a time and at a given time, with its invariants checked. */
import { executionId, groupId } from '../../src/core/ids.ts'
import { advance } from '../../src/scheduler/advance.ts'
import { checkInvariants } from '../../src/scheduler/invariants.ts'
import { initialState } from '../../src/scheduler/state.ts'
import type { Command, SchedulerEvent } from '../../src/scheduler/messages.ts'
import type { ExecutionSlot, SchedulerConfig, SchedulerState } from '../../src/scheduler/types.ts'

export class TimedSchedule {
  state: SchedulerState
  readonly #throughJson: boolean

  constructor(state: SchedulerState, throughJson = false) {
    this.state = state
    this.#throughJson = throughJson
  }

  /** Started at 0, with the groups that were asked for: the members of group i are ia, ib and so on. */
  static begun(config: SchedulerConfig, throughJson = false): TimedSchedule {
    const schedule = new TimedSchedule(initialState(config), throughJson)
    const [create] = schedule.at(0, { kind: 'start' })
    if (create?.kind !== 'create-groups') throw new Error('no groups are asked for')
    const groups = Array.from({ length: create.count }, (_, i) => ({
      groupId: groupId(`g${i}`),
      executionIds: Array.from({ length: config.groupSize }, (__, m) =>
        executionId(`${i}${String.fromCodePoint(97 + m)}`),
      ),
    }))
    schedule.at(0, { kind: 'groups-created', groups })
    return schedule
  }

  at(atMs: number, ...events: readonly SchedulerEvent[]): Command[] {
    const all: Command[] = []
    for (const event of events) {
      const previous = this.state
      const { state, commands } = advance(previous, event, atMs)
      this.state = this.#throughJson ? (JSON.parse(JSON.stringify(state)) as SchedulerState) : state
      const broken = checkInvariants(this.state, previous)
      if (broken.length > 0) throw new Error(`after ${event.kind}: ${broken.join(', ')}`)
      all.push(...commands)
    }
    return all
  }

  /** These executions end, and are scored at once. */
  end(atMs: number, ...ids: readonly string[]): Command[] {
    const events = ids.flatMap((id): SchedulerEvent[] => [
      { kind: 'execution-ended', executionId: executionId(id) },
      { kind: 'execution-scored', executionId: executionId(id) },
    ])
    return this.at(atMs, ...events)
  }

  tick(atMs: number): Command[] {
    return this.at(atMs, { kind: 'tick' })
  }

  member(id: string): ExecutionSlot {
    const found = this.state.groups.flatMap((g) => g.members).find((m) => m.executionId === executionId(id))
    if (found === undefined) throw new Error(`no execution ${id}`)
    return found
  }
}

/** Executions a batch of commands cuts. */
export function cutsOf(commands: readonly Command[]): string[] {
  return commands.flatMap((c) => (c.kind === 'cut-execution' ? [c.executionId] : []))
}

/** Times a batch of commands asks to be woken at. [ms] */
export function wakesOf(commands: readonly Command[]): number[] {
  return commands.flatMap((c) => (c.kind === 'wake' ? [c.atMs] : []))
}
