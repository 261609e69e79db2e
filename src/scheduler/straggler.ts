/**
 * @file The last members of a group, ended early so that nobody waits for them (scheduler.md 5).
 *
 * A member is cut when its group's quorum has ended and it has run (1 + grace) times as long as the quorum took, counted
 * from its own start. So one that began later, because it was queued or is a second attempt, has the same time, and one
 * that is held for want of an engine loses none of it. Only what runs is cut: a queued or retrying member has nothing
 * to score, and a held one could not have helped it. A group that a resumed run finds with its quorum already there is
 * left alone: how long the quorum took is not known.
 */
import { isUnfinished, quorumOf } from './state.ts'
import { writable } from './tick.ts'
import type { DraftExecution, DraftGroup, DraftState, Tick } from './tick.ts'
import type { ExecutionSlot, GroupSlot, SchedulerConfig } from './types.ts'

/** It runs without an engine: its time stands still. */
export function hold(state: DraftState, member: DraftExecution): void {
  member.phase = 'held'
  member.heldAtMs = state.nowMs
}

/** It gets an engine: for the first time, or again. */
export function beginsToRun(state: DraftState, group: DraftGroup, member: DraftExecution): void {
  if (member.heldAtMs !== undefined && member.startedAtMs !== undefined) {
    member.startedAtMs += state.nowMs - member.heldAtMs
  }
  member.heldAtMs = undefined
  member.startedAtMs ??= state.nowMs
  group.startedAtMs ??= state.nowMs
}

/** A member has ended: perhaps the one that makes the quorum. */
export function noteQuorum(state: DraftState, group: DraftGroup): void {
  if (group.startedAtMs === undefined || group.quorumMs !== undefined) return
  const ended = group.members.filter((m) => !isUnfinished(m)).length
  if (ended === quorumOf(state.config)) group.quorumMs = state.nowMs - group.startedAtMs
}

/** When a member that runs is to be cut; undefined while it is not known, or never. [ms] */
export function cutAtMs(config: SchedulerConfig, group: GroupSlot, member: ExecutionSlot): number | undefined {
  if (config.stragglerQuorum >= 1 || group.quorumMs === undefined) return undefined
  if (member.phase !== 'running' || member.cut || member.startedAtMs === undefined) return undefined
  return member.startedAtMs + (1 + config.stragglerGrace) * group.quorumMs
}

/** Cuts what is due, oldest groups first, and asks to be woken for what is not. */
export function cutStragglers(tick: Tick): boolean {
  const { state, commands } = tick
  if (state.config.stragglerQuorum >= 1) return false
  let next = Number.POSITIVE_INFINITY
  let hasCut = false
  for (const group of state.groups) {
    for (const member of group.members) {
      const atMs = cutAtMs(state.config, group, member)
      if (atMs === undefined) continue
      if (atMs > state.nowMs) {
        next = Math.min(next, atMs)
        continue
      }
      writable(tick, group, member).cut = true
      state.cutExecutions++
      hasCut = true
      commands.push({ kind: 'cut-execution', executionId: member.executionId })
    }
  }
  return wakeAt(tick, next) || hasCut
}

function wakeAt({ state, commands }: Tick, atMs: number): boolean {
  if (atMs === Number.POSITIVE_INFINITY || atMs >= (state.wakeAtMs ?? Number.POSITIVE_INFINITY)) return false
  state.wakeAtMs = atMs
  commands.push({ kind: 'wake', atMs })
  return true
}

/** Whatever was asked for has come: what is still to come is asked for again. */
export function woken(state: DraftState): void {
  state.wakeAtMs = undefined
}
