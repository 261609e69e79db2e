/** @file Cells that die and come back (E13). */
import { releasesCells } from './burst.ts'
import { rehome } from './routes.ts'
import { burstClock } from './state.ts'
import { abandonStep, freshStep, redoStep, returnWork } from './steps.ts'
import { failRun } from './tick.ts'
import type { DraftCell, DraftState, Tick } from './tick.ts'
import { enterTraining } from './transfer.ts'

const JOIN_ATTEMPTS = 3

/** Whatever it was doing is taken over, and its process is started again. */
export function failCell(tick: Tick, index: number, cell: DraftCell): void {
  const { state } = tick
  if (cell.phase === 'failed') return
  const wasTraining = cell.phase === 'training'
  returnWork(tick, cell)
  cell.phase = 'failed'
  cell.epoch++
  cell.publishing = false
  if (state.transfer?.cell === index) state.transfer = undefined
  rehome(tick, { kind: 'cell', index })
  // A checkpoint under way decides by its own outcome what the core's death undoes.
  if (tick.guards.mustUndo(state, index, wasTraining)) undoSteps(tick)
  restartCell(tick, index, cell)
}

/** Also called when a restart itself failed. */
export function restartCell(tick: Tick, index: number, cell: DraftCell): void {
  if (cell.phase !== 'failed') return
  const budget = tick.state.config.cellRestarts
  if (!tick.guards.mayRestart(cell.restarts, budget)) {
    failRun(tick, `cell ${index} is gone and was restarted ${cell.restarts} times already: the budget is ${budget}`)
    return
  }
  cell.restarts++
  tick.commands.push({ kind: 'restart-cell', cell: index, epoch: cell.epoch })
}

/** E13, core: back to the last checkpoint. Groups trained since are ready again; satellites keep their role. */
function undoSteps(tick: Tick): void {
  const { state } = tick
  abandonStep(tick)
  for (const group of state.groups) {
    if (group.phase !== 'trained') continue
    group.phase = 'ready'
    group.trainedStep = undefined
  }
  if (state.step > state.checkpointStep) tick.commands.push({ kind: 'steps-undone', toStep: state.checkpointStep })
  state.step = state.checkpointStep
  state.burst.firstStep = state.step
  state.burst.stepsLeft = Math.min(state.config.stepsPerBurst, state.config.totalSteps - state.step)
  Object.assign(state.burst, burstClock(state.nowMs))
  state.openStep = freshStep(state)
}

export function checkpointFailed(tick: Tick, step: number): void {
  const { state } = tick
  const core = state.cells[0]
  if (!tick.guards.isOfCheckpoint(state, step) || core === undefined) return
  state.phase = 'running'
  if (core.phase === 'training') failCell(tick, 0, core)
  else undoSteps(tick)
}

export function joinFailed(tick: Tick, index: number, cell: DraftCell, step: number): void {
  if (!cell.joining || tick.state.openStep?.index !== step) return
  cell.joining = false
  cell.joinFailures++
  if (cell.joinFailures >= JOIN_ATTEMPTS) failCell(tick, index, cell)
}

export function reduceFailed(tick: Tick): void {
  redoStep(tick)
}

export function cellRestarted(cell: DraftCell): void {
  if (cell.phase === 'failed') cell.phase = 'restarted'
}

/** A fresh process takes the weights of the last checkpoint, once it is known which that is. */
export function restore(tick: Tick): boolean {
  const { state } = tick
  if (state.phase === 'checkpointing') return false
  let issued = false
  for (const [index, cell] of state.cells.entries()) {
    if (cell.phase !== 'restarted') continue
    cell.phase = 'restoring'
    tick.commands.push({ kind: 'restore-cell', cell: index, epoch: cell.epoch, version: state.policyVersion })
    issued = true
  }
  return issued
}

export function cellRestored(tick: Tick, index: number, cell: DraftCell, version: number): void {
  const { state } = tick
  if (cell.phase !== 'restoring') return
  if (!tick.guards.isOfVersion(state.policyVersion, version)) {
    cell.phase = 'restarted'
    return
  }
  cell.policyVersion = version
  if (belongsInTraining(state, index)) enterTraining(tick, index, cell)
  else cell.phase = 'rollout'
}

function belongsInTraining(state: DraftState, index: number): boolean {
  return index < state.prefix && !(state.phase === 'publishing' && releasesCells(state))
}
