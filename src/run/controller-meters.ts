/** @file What the live controller measures: time per cell and role, time per phase of a step, sums of a step. */
import type { GroupId } from '../core/ids.ts'
import { outstandingGroups } from '../scheduler/dispatch.ts'
import { slotsUsed } from '../scheduler/place.ts'
import type { Command, SchedulerEvent } from '../scheduler/messages.ts'
import type { CellPhase, CellSlot, SchedulerState } from '../scheduler/types.ts'
import { rolloutCapacity, waterLevel } from '../scheduler/waterlevel.ts'
import type { ForwardBackwardResult } from '../training/batch.ts'
import type { CellUsage, ControllerSnapshot } from './controller-types.ts'

type UsageKey = Exclude<keyof CellUsage, 'cellId'>
type Usage = Record<UsageKey, number>

const OUTSIDE_A_ROLE: Readonly<Partial<Record<CellPhase, UsageKey>>> = {
  draining: 'switchingMs',
  entering: 'switchingMs',
  returning: 'switchingMs',
}

function usageKey(state: SchedulerState, index: number): UsageKey {
  const cell = state.cells[index]
  if (cell?.phase === 'rollout') {
    return slotsUsed(state, { kind: 'cell', index }) > 0 ? 'rolloutBusyMs' : 'rolloutIdleMs'
  }
  if (cell?.phase === 'training') {
    const gathers = index === 0 && (state.openStep?.phase ?? 'open') !== 'open'
    return cell.claim !== undefined || cell.early !== undefined || gathers ? 'trainingBusyMs' : 'trainingIdleMs'
  }
  return OUTSIDE_A_ROLE[cell?.phase ?? 'failed'] ?? 'failedMs'
}

/** Adds up the time between looks under the state that held meanwhile. */
export class UsageMeter {
  readonly #cells: Usage[]
  #keys: UsageKey[]
  #atMs: number

  constructor(state: SchedulerState, nowMs: number) {
    this.#cells = state.cells.map(() => ({
      rolloutBusyMs: 0,
      rolloutIdleMs: 0,
      trainingBusyMs: 0,
      trainingIdleMs: 0,
      switchingMs: 0,
      failedMs: 0,
    }))
    this.#keys = state.cells.map((_, index) => usageKey(state, index))
    this.#atMs = nowMs
  }

  observe(state: SchedulerState, nowMs: number): void {
    for (const [index, usage] of this.#cells.entries()) {
      const key = this.#keys[index]
      if (key !== undefined) usage[key] += nowMs - this.#atMs
    }
    this.#keys = state.cells.map((_, index) => usageKey(state, index))
    this.#atMs = nowMs
  }

  read(): readonly Readonly<Usage>[] {
    return this.#cells.map((usage) => ({ ...usage }))
  }
}

/** Times and sums of the step that is open. */
export class StepMeter {
  readonly #results = new Map<string, ForwardBackwardResult>()
  #beganMs: number
  #firstClaimMs: number | undefined
  #gatherMs: number | undefined
  #optimizeMs: number | undefined
  #gradientNorm = 0
  #carryOver = 0
  #overCommit = 1
  #slotLoadMax = 0
  #executionsCut = 0
  #tokensHandedOver = 0
  #earlyGradients = 0
  /** Micro-steps that a kept gradient served, as far as they were not done again. */
  readonly #servedEarly = new Set<string>()

  constructor(nowMs: number) {
    this.#beganMs = nowMs
  }

  observe(state: SchedulerState): void {
    this.#carryOver = state.carryOver
    this.#overCommit = state.load.factor
    const capacity = rolloutCapacity(state)
    if (capacity > 0) this.#slotLoadMax = Math.max(this.#slotLoadMax, (state.started - state.terminated) / capacity)
  }

  handedOver(tokens: number): void {
    this.#tokensHandedOver += tokens
  }

  command(command: Command, nowMs: number): void {
    if (command.kind === 'train' || command.kind === 'apply-held') this.#firstClaimMs ??= nowMs
    if (command.kind === 'reduce') this.#gatherMs = nowMs
    if (command.kind === 'optimize') this.#optimizeMs = nowMs
    if (command.kind === 'cut-execution') this.#executionsCut++
    // A group that is cut again starts over; so does a step that was undone.
    if (command.kind === 'build-micro-steps') this.#forget(command.groupId)
    if (command.kind === 'steps-undone') this.#reset(nowMs)
  }

  trained(groupId: GroupId, index: number, result: ForwardBackwardResult): void {
    this.#results.set(`${groupId}/${index}`, result)
  }

  /** @param cell as it was when it said so. */
  answered(event: SchedulerEvent, { early, claim }: CellSlot): void {
    if (event.kind === 'gradient-held' && early?.key === event.key) this.#earlyGradients++
    if (event.kind !== 'micro-step-done' || claim?.key !== event.key) return
    const name = `${claim.groupId}/${claim.index}`
    if (claim.held === undefined) this.#servedEarly.delete(name)
    else this.#servedEarly.add(name)
  }

  optimized(gradientNorm: number): void {
    this.#gradientNorm = gradientNorm
  }

  /** Metrics of the step that ends now; the next one begins. */
  finish(command: Extract<Command, { readonly kind: 'step-done' }>, nowMs: number): Record<string, number> {
    const results = [...this.#results.values()]
    const sum = (pick: (result: ForwardBackwardResult) => number): number =>
      results.reduce((total, result) => total + pick(result), 0)
    const optimizeAt = this.#optimizeMs ?? nowMs
    const gatherAt = this.#gatherMs ?? optimizeAt
    const metrics = {
      loss: sum((r) => r.loss),
      entropy: sum((r) => r.entropy),
      clipped_tokens: sum((r) => r.clippedTokens),
      masked_tokens: sum((r) => r.maskedTokens),
      trained_tokens: sum((r) => r.logprobs.length),
      micro_steps: results.length,
      gradient_norm: this.#gradientNorm,
      staleness_mean: command.staleness.mean,
      staleness_max: command.staleness.max,
      step_ms: nowMs - this.#beganMs,
      train_ms: gatherAt - (this.#firstClaimMs ?? gatherAt),
      reduce_ms: optimizeAt - gatherAt,
      optimize_ms: nowMs - optimizeAt,
      carry_over: this.#carryOver,
      executions_cut: this.#executionsCut,
      ...(this.#earlyGradients > 0 && {
        early_gradients: this.#earlyGradients,
        early_micro_steps: this.#servedEarly.size,
      }),
      handed_over_tokens: this.#tokensHandedOver,
      over_commit: this.#overCommit,
      slot_load_max: this.#slotLoadMax,
    }
    this.#executionsCut = 0
    this.#tokensHandedOver = 0
    this.#slotLoadMax = 0
    this.#reset(nowMs)
    return metrics
  }

  #forget(groupId: GroupId): void {
    for (const key of this.#results.keys()) if (key.startsWith(`${groupId}/`)) this.#results.delete(key)
  }

  #reset(nowMs: number): void {
    this.#results.clear()
    this.#earlyGradients = 0
    this.#servedEarly.clear()
    this.#beganMs = nowMs
    this.#firstClaimMs = undefined
    this.#gatherMs = undefined
    this.#optimizeMs = undefined
    this.#gradientNorm = 0
  }
}

export function snapshotOf(state: SchedulerState): ControllerSnapshot {
  const members = state.groups.flatMap((g) => g.members)
  const count = (phase: string): number => members.filter((m) => m.phase === phase).length
  return {
    step: state.step,
    totalSteps: state.config.totalSteps,
    burst: state.burst.id,
    policyVersion: state.policyVersion,
    waterLevel: waterLevel(state),
    capacity: rolloutCapacity(state),
    prefix: state.prefix,
    carryOver: state.carryOver,
    liveExecutions: state.started - state.terminated,
    queuedExecutions: state.dispatched - state.started,
    heldExecutions: count('held'),
    readyGroups: state.groups.filter((g) => g.phase === 'ready').length,
    outstandingGroups: outstandingGroups(state),
    cells: state.cells.map((cell, index) => ({
      phase: cell.phase,
      executions: slotsUsed(state, { kind: 'cell', index }),
      busy: cell.claim !== undefined || cell.early !== undefined,
    })),
    standalone: state.standalone.map((engine, index) => ({
      phase: engine.phase,
      executions: slotsUsed(state, { kind: 'standalone', index }),
      policyVersion: engine.policyVersion,
    })),
  }
}
