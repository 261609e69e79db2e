/**
 * @file How old a group may be when it is trained.
 *
 * Hard bound (I8): s_consume - v_d <= mu - 1 + mu ceil(phi / mu) [steps], with the largest phi that may be chosen. Rule R3 generalised: a ready group may be
 * taken only if every group with an earlier deadline still finds a place before its own, also when it is not
 * ready yet. For phi <= mu this is R3 as published: groups left over from an earlier burst go first. Pure.
 */
import type { StepStaleness } from './messages.ts'
import type { GroupSlot, SchedulerConfig, SchedulerState } from './types.ts'

/** The largest staleness a group can be trained at. [steps] */
export function stalenessBound(config: Pick<SchedulerConfig, 'stepsPerBurst' | 'carryOverMax'>): number {
  const mu = config.stepsPerBurst
  return mu - 1 + mu * Math.ceil(config.carryOverMax / mu)
}

/** Of the groups trained on the weights of `step` steps: step - v_d. Both are 0 for no groups. */
export function stalenessOf(step: number, groups: readonly Pick<GroupSlot, 'dispatchVersion'>[]): StepStaleness {
  const all = groups.map((g) => step - g.dispatchVersion)
  return { mean: all.reduce((sum, d) => sum + d, 0) / Math.max(1, all.length), max: Math.max(0, ...all) }
}

/** True when taking `group` into the open step leaves every more urgent group its place. */
export function mayAssign(state: SchedulerState, group: GroupSlot): boolean {
  const { config, openStep } = state
  if (openStep === undefined) return false
  const bound = stalenessBound(config)
  const urgent = state.groups
    .filter(
      (g) => g !== group && (g.phase === 'running' || g.phase === 'ready') && g.dispatchVersion < group.dispatchVersion,
    )
    .map((g) => g.dispatchVersion + bound)
    .toSorted((a, b) => a - b)
  const taken = openStep.groups.length
  return urgent.every((deadline, i) => {
    if (urgent[i + 1] === deadline) return true
    const places = (deadline - openStep.index + 1) * config.groupsPerStep - taken
    return i + 1 < places
  })
}
