/**
 * @file Rollout to training, one cell at a time, core first (E8, R2T): reserve, re-route, hand over, cancel, enter.
 *
 * What ends each phase, beside its own report and the death of the cell that moves: a hand-over and a cancellation are
 * undone when the move makes no sense any more (`Guards.mayGoOn`), entering goes on. The death of the core undoes the
 * step, not the move.
 */
import { hasBacklog } from './demand.ts'
import { moveAway } from './routes.ts'
import { nextSerial } from './tick.ts'
import type { DraftCell, Tick } from './tick.ts'
import { rolloutCapacity, waterLevel } from './waterlevel.ts'

/** E8. */
export function checkWaterLevel(tick: Tick): boolean {
  const { state } = tick
  const cell = state.cells[state.prefix]
  const isPossible =
    cell !== undefined &&
    tick.guards.mayLeave(state, cell) &&
    tick.guards.isLevelKnown(state) &&
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

/** Reservation and routes. Returns false, and changes nothing, without a reservation. */
function beginTransfer(tick: Tick, index: number, cell: DraftCell): boolean {
  const { state, commands } = tick
  const leaving = moveAway(tick, index)
  if (leaving === undefined) return false
  cell.phase = 'draining'
  cell.epoch++
  const id = nextSerial(state)
  state.transfer = { id, cell: index, phase: 'handing-over', moved: leaving.length }
  // Only cells can fetch from a cell; a new attempt has nothing cached.
  const moves = leaving.flatMap(({ executionId, destination, phase }) =>
    phase === 'running' && destination?.kind === 'cell' ? [{ executionId, destination }] : [],
  )
  if (state.config.kvHandover && moves.length > 0) {
    commands.push({ kind: 'hand-over', transferId: id, cell: index, epoch: cell.epoch, moves })
  } else {
    cancelInFlight(tick)
  }
  return true
}

/** The destinations have what they could get: from now on its own copies are of no use. */
export function handedOver(tick: Tick, transferId: number): void {
  const { transfer } = tick.state
  if (transfer === undefined || !tick.guards.isOfTransfer(transfer, transferId, 'handing-over')) return
  if (!rollBack(tick)) cancelInFlight(tick)
}

function cancelInFlight(tick: Tick): void {
  const { transfer, cells } = tick.state
  const cell = transfer === undefined ? undefined : cells[transfer.cell]
  if (transfer === undefined || cell === undefined) return
  transfer.phase = 'cancelling'
  tick.commands.push({
    kind: 'cancel-in-flight',
    transferId: transfer.id,
    cell: transfer.cell,
    epoch: cell.epoch,
    moved: transfer.moved,
  })
}

/** Nothing runs on it any more. */
export function cancelled(tick: Tick, transferId: number): void {
  const { transfer, cells } = tick.state
  if (transfer === undefined || !tick.guards.isOfTransfer(transfer, transferId, 'cancelling')) return
  const cell = cells[transfer.cell]
  if (cell === undefined || undo(tick)) return
  transfer.phase = 'entering'
  enterTraining(tick, transfer.cell, cell)
}

/** Undoes a hand-over that makes no sense any more. Executions that found a place keep it. */
export function rollBack(tick: Tick): boolean {
  return tick.state.transfer?.phase === 'handing-over' && undo(tick)
}

/** The cell serves again, under an epoch that fences the move off. While it cancels, only once that is done. */
function undo(tick: Tick): boolean {
  const { state } = tick
  const cell = state.transfer === undefined ? undefined : state.cells[state.transfer.cell]
  if (cell === undefined || tick.guards.mayGoOn(state)) return false
  cell.phase = 'rollout'
  cell.epoch++
  state.transfer = undefined
  return true
}

export function enterTraining(tick: Tick, index: number, cell: DraftCell): void {
  cell.phase = 'entering'
  tick.commands.push({ kind: 'enter-training', cell: index, epoch: cell.epoch })
}

/** The training prefix grows. A cell that was restored inside the prefix comes here without a transfer. */
export function enteredTraining(tick: Tick, index: number, cell: DraftCell): void {
  const { state } = tick
  if (cell.phase !== 'entering') return
  cell.phase = 'training'
  if (state.transfer?.cell !== index) return
  state.transfer = undefined
  state.prefix++
}
