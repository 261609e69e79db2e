/** @file The end of steps and bursts: checkpoint, publication, who returns (E11 second half, E12). */
import { chooseCarryOver, rememberBurst } from './carry-over.ts'
import { boundaryCount, isStuck, openBurst } from './dispatch.ts'
import { stalenessOf } from './staleness.ts'
import { abandonStep, clearMembers, freshStep } from './steps.ts'
import type { DraftState, Tick } from './tick.ts'
import { rolloutCapacity, waterLevel } from './waterlevel.ts'

/** E11, second half. */
export function optimized(tick: Tick): void {
  const { state } = tick
  if (state.openStep?.phase !== 'optimizing') return
  const done = state.groups.filter((g) => g.phase === 'assigned')
  for (const group of done) {
    group.phase = 'trained'
    group.trainedStep = state.step
  }
  state.step++
  state.burst.stepsLeft--
  tick.commands.push({
    kind: 'step-done',
    step: state.step,
    burst: state.burst.id,
    groups: done.map((g) => ({ groupId: g.groupId, dispatchVersion: g.dispatchVersion })),
    staleness: stalenessOf(state.step - 1, done),
  })
  clearMembers(state)
  if (state.burst.stepsLeft === 0) {
    state.openStep = undefined
    beginCheckpoint(tick)
    return
  }
  state.openStep = freshStep(state)
  // The optimizer left the core's accumulator at zero, and its weights are the step's.
  const core = state.cells[0]
  if (core !== undefined) core.joined = true
}

function beginCheckpoint(tick: Tick): void {
  const { state } = tick
  state.phase = 'checkpointing'
  tick.commands.push({
    kind: 'checkpoint',
    epoch: state.cells[0]?.epoch ?? 0,
    step: state.step,
    burst: state.burst.id,
    policyVersion: state.step,
    groups: state.groups.filter((g) => g.phase === 'trained').map((g) => g.groupId),
  })
}

/** E12 begins once what is to be published can no longer be lost. */
export function checkpointed(tick: Tick, step: number): void {
  const { state } = tick
  if (!tick.guards.isOfCheckpoint(state, step)) return
  state.checkpointStep = step
  state.policyVersion = step
  state.groups = state.groups.filter((g) => g.phase !== 'trained')
  state.phase = 'publishing'
  const core = state.cells[0]
  if (core?.phase === 'training') core.policyVersion = step
}

/** Ends a burst whose open step can never fill; its groups are trained by a later one. */
export function cutBurst(tick: Tick): boolean {
  const { state } = tick
  if (!isStuck(state)) return false
  abandonStep(tick)
  state.burst.stepsLeft = 0
  if (state.step > state.checkpointStep) beginCheckpoint(tick)
  else state.phase = 'publishing'
  return true
}

/** True when cells in training go back to rollout at the end of this burst. */
export function releasesCells(state: DraftState): boolean {
  return state.config.policy !== 'async' || isLast(state)
}

function isLast(state: DraftState): boolean {
  return state.step >= state.config.totalSteps
}

/** E12: every cell but the core takes the new version; satellites open for rollout with it. */
export function publish(tick: Tick): boolean {
  const { state } = tick
  let issued = false
  for (const [index, cell] of state.cells.entries()) {
    if (index === 0 || cell.publishing) continue
    const returns = cell.phase === 'training' && releasesCells(state)
    const isBehind = cell.phase === 'rollout' && cell.policyVersion !== state.policyVersion
    if (!returns && !isBehind) continue
    sendVersion(tick, index, returns)
    issued = true
  }
  return issued
}

function sendVersion(tick: Tick, index: number, enterRollout: boolean): void {
  const cell = tick.state.cells[index]
  if (cell === undefined) return
  cell.publishing = true
  if (enterRollout) {
    cell.phase = 'returning'
    cell.epoch++
  }
  tick.commands.push({
    kind: 'publish',
    cell: index,
    epoch: cell.epoch,
    version: tick.state.policyVersion,
    enterRollout,
  })
}

/** The last word on a burst: does the core stay, and is there another burst? */
export function endBurst(tick: Tick): boolean {
  const { state } = tick
  // Groups still being created belong to the burst that asked for them.
  if (!tick.guards.isAcked(state) || state.transfer !== undefined || state.creating > 0) return false
  if (!isLast(state)) {
    // Before the core is judged by what the next burst dispatches.
    rememberBurst(state)
    state.carryOver = chooseCarryOver(state)
  }
  const core = state.cells[0]
  if (core?.phase === 'training' && !coreStays(tick)) {
    sendVersion(tick, 0, true)
    state.prefix = 0
    // A last burst waits for the core: whoever comes after the run finds every cell in rollout.
    if (isLast(state)) return true
  } else if (releasesCells(state)) {
    state.prefix = core?.phase === 'training' ? 1 : 0
  }
  if (!isLast(state)) {
    openBurst(tick)
    return true
  }
  if (state.cells.some((cell) => cell.phase !== 'rollout')) return false
  state.phase = 'done'
  tick.commands.push({ kind: 'finish', outcome: 'done', reason: '' })
  return true
}

/**
 * E12: the core goes on training when data waits for it and the cells in rollout hold every execution that
 * is unfinished or about to be dispatched: the water level guard, one boundary early.
 */
function coreStays(tick: Tick): boolean {
  const { state } = tick
  if (isLast(state) || state.config.policy === 'colocate') return false
  if (state.config.policy === 'async') return true
  const unfinished = waterLevel(state) + boundaryCount(tick) * state.config.groupSize
  return state.groups.some((g) => g.phase === 'ready') && unfinished <= rolloutCapacity(state)
}
