/** @file Rollout to training, one cell at a time, core first (E8, R2T). */
import { moveAway } from './executions.ts'
import { nextSerial } from './tick.ts'
import type { DraftCell, DraftState, Tick } from './tick.ts'
import { rolloutCapacity, waterLevel } from './waterlevel.ts'

/** E8. */
export function checkWaterLevel(tick: Tick): boolean {
  const { state } = tick
  const cell = state.cells[state.prefix]
  const isPossible =
    cell?.phase === 'rollout' &&
    !cell.publishing &&
    state.transfer === undefined &&
    state.creating === 0 &&
    state.burst.stepsLeft > 0
  return isPossible && policyAllows(tick) && beginTransfer(tick, state.prefix, cell)
}

/** The three policies are three guards of one move. */
function policyAllows(tick: Tick): boolean {
  const { state } = tick
  const { config } = state
  if (config.policy === 'async') return state.prefix < config.trainingCells
  if (config.policy === 'colocate' && state.groups.some((g) => g.phase === 'running')) return false
  if (!tick.guards.waterLevelAllows(waterLevel(state), rolloutCapacity(state), config.cellSlots)) return false
  return !config.demandAware || state.prefix === 0 || hasBacklog(state)
}

/** Work the present members have not claimed. */
function hasBacklog(state: DraftState): boolean {
  const step = state.openStep
  if (step === undefined) return false
  const isBuilding = step.groups.some((g) => g.microSteps === undefined)
  return step.queue.length > 0 || isBuilding || state.groups.some((g) => g.phase === 'ready')
}

/** R2T phases 1 to 4: no admission, reserve, re-route, cancel. Returns false, and changes nothing, without a reservation. */
function beginTransfer(tick: Tick, index: number, cell: DraftCell): boolean {
  const { state, commands } = tick
  const moved = moveAway(tick, index)
  if (moved === undefined) return false
  cell.phase = 'draining'
  cell.epoch++
  const id = nextSerial(state)
  state.transfer = { id, cell: index, phase: 'cancelling' }
  commands.push({ kind: 'cancel-in-flight', transferId: id, cell: index, epoch: cell.epoch, moved })
  return true
}

/** R2T phase 5: nothing runs on it any more. */
export function cancelled(tick: Tick, transferId: number): void {
  const { transfer, cells } = tick.state
  if (transfer?.id !== transferId || transfer.phase !== 'cancelling') return
  const cell = cells[transfer.cell]
  if (cell === undefined) return
  transfer.phase = 'entering'
  enterTraining(tick, transfer.cell, cell)
}

export function enterTraining(tick: Tick, index: number, cell: DraftCell): void {
  cell.phase = 'entering'
  tick.commands.push({ kind: 'enter-training', cell: index, epoch: cell.epoch })
}

/** R2T phase 6: the training prefix grows. A cell that was restored inside the prefix comes here without a transfer. */
export function enteredTraining(tick: Tick, index: number, cell: DraftCell): void {
  const { state } = tick
  if (cell.phase !== 'entering') return
  cell.phase = 'training'
  if (state.transfer?.cell !== index) return
  state.transfer = undefined
  state.prefix++
}
