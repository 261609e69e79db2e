/** @file The boundary (E1) and what keeps a burst fillable when groups drop out. */
import type { Draft, DraftState, Tick } from './tick.ts'
import { failRun } from './tick.ts'
import { burstClock, isUnfinished } from './state.ts'
import { freshStep } from './steps.ts'
import type { CreatedGroup } from './messages.ts'
import type { GroupSlot, SchedulerState } from './types.ts'
import { standaloneCapacity } from './waterlevel.ts'

/** Groups not yet trained, those being created included. */
export function outstandingGroups(state: SchedulerState): number {
  return state.groups.filter((g) => g.phase !== 'trained').length + state.creating
}

/** Groups the next boundary dispatches: up to the depth, and never more than the remaining steps can consume. */
export function boundaryCount({ state, guards }: Tick): number {
  const { config } = state
  const outstanding = outstandingGroups(state)
  const consumable = (config.totalSteps - state.step) * config.groupsPerStep
  return Math.max(0, Math.min(guards.roomForGroups(state, outstanding), consumable - outstanding))
}

/** E1. The caller has seen every rolling-out cell take the published version. */
export function openBurst(tick: Tick): void {
  const { state } = tick
  const stepsLeft = Math.min(state.config.stepsPerBurst, state.config.totalSteps - state.step)
  state.phase = 'running'
  state.burst = { id: state.burst.id + 1, firstStep: state.step, stepsLeft, ...burstClock(state.nowMs) }
  state.openStep = freshStep(state)
  create(tick, boundaryCount(tick))
}

function create(tick: Tick, count: number): void {
  if (count === 0) return
  const { state } = tick
  state.creating = count
  state.creatingVersion = state.policyVersion
  tick.commands.push({
    kind: 'create-groups',
    count,
    dispatchVersion: state.policyVersion,
    burst: state.burst.id,
  })
}

/** The only place where d grows. */
export function groupsCreated(tick: Tick, groups: readonly CreatedGroup[]): void {
  const { state } = tick
  if (!tick.guards.isAskedFor(state, groups)) return
  if (groups.length !== state.creating || groups.some((g) => g.executionIds.length !== state.config.groupSize)) {
    failRun(tick, `${groups.length} groups were created where ${state.creating} were asked for`)
    return
  }
  state.creating = 0
  state.dispatches++
  state.dispatched += groups.length * state.config.groupSize
  state.groups.push(...groups.map((group) => newGroup(group, state.creatingVersion, state.nowMs)))
}

function newGroup(group: CreatedGroup, dispatchVersion: number, nowMs: number): Draft<GroupSlot> {
  return {
    groupId: group.groupId,
    dispatchVersion,
    phase: 'running',
    readyOrder: undefined,
    trainedStep: undefined,
    dispatchedAtMs: nowMs,
    startedAtMs: undefined,
    quorumMs: undefined,
    members: group.executionIds.map((executionId) => ({
      executionId,
      attempt: 0,
      phase: 'queued',
      destination: undefined,
      routeEpoch: 0,
      startedAtMs: undefined,
      heldAtMs: undefined,
      cut: false,
    })),
  }
}

/** Groups that may still be taken by this burst: ready, running, or being created. */
function availableGroups(state: SchedulerState): number {
  return state.groups.filter((g) => g.phase === 'running' || g.phase === 'ready').length + state.creating
}

/** Groups this burst lacks even if everything still out becomes ready. */
export function shortfall(state: SchedulerState): number {
  const taken = state.openStep?.groups.length ?? 0
  return state.burst.stepsLeft * state.config.groupsPerStep - taken - availableGroups(state)
}

/** True when some destination serves executions now or will without a role change. */
function canHost(state: DraftState): boolean {
  if (standaloneCapacity(state) > 0) return true
  return state.cells.some((_, index) => index >= state.prefix && index !== state.transfer?.cell)
}

/** A burst that lost groups gets replacements at once while anything can roll them out. */
export function replaceLost(tick: Tick): boolean {
  const lacking = shortfall(tick.state)
  if (lacking <= 0 || tick.state.creating > 0 || !canHost(tick.state)) return false
  create(tick, lacking)
  return true
}

/**
 * True when the open step cannot fill any more as things are: nothing can roll out, and no group that waits for its
 * scores could still complete it. Asked when no ready group may be taken. What failed engines beside the cells hold is
 * waited for while there is something to train, and under `async`, whose cells never change their role.
 */
export function isStuck(state: DraftState): boolean {
  const { openStep, config } = state
  if (openStep?.phase !== 'open' || state.transfer !== undefined || state.creating > 0) return false
  if (openStep.groups.length >= config.groupsPerStep || config.policy === 'async' || canHost(state)) return false
  const isEvaluating = state.groups.some((g) => g.phase === 'running' && g.members.every((m) => !isUnfinished(m)))
  if (isEvaluating) return false
  return state.standalone.every((engine) => engine.phase === 'serving') || !isTraining(state)
}

/** True while members still have micro-steps to compute, or will have. */
function isTraining({ openStep, cells }: DraftState): boolean {
  if (openStep === undefined) return false
  const isBuilding = openStep.groups.some((g) => g.microSteps === undefined)
  return isBuilding || openStep.queue.length > 0 || cells.some((cell) => cell.claim !== undefined)
}
