/** @file What an onlooker of a run is told, and what is measured for it: events, role transfers, steps, time per cell. */
import type { FetchedKv } from '../ports/cell.ts'
import type { Command, SchedulerEvent } from '../scheduler/messages.ts'
import type { SchedulerState } from '../scheduler/types.ts'
import type { ForwardBackwardResult } from '../training/batch.ts'
import type { GroupId } from '../core/ids.ts'
import { snapshotOf, StepMeter, UsageMeter } from './controller-meters.ts'
import { TransferLog } from './controller-transfers.ts'
import type {
  CellUsage,
  CommandOf,
  ControllerEvent,
  ControllerOptions,
  ControllerSnapshot,
  RunSummary,
  StepSummary,
} from './controller-types.ts'

/** An event without what is added to every one. */
export type Fact = ControllerEvent extends infer E
  ? E extends ControllerEvent
    ? Omit<E, 'atMs' | 'snapshot'>
    : never
  : never

type Looks = { readonly [K in Command['kind']]?: (command: CommandOf<K>, nowMs: number) => void }

/** A cell or standalone engine that had failed serves again with this event. */
export function hasReturned(event: SchedulerEvent, previous: SchedulerState, state: SchedulerState): boolean {
  if (event.kind === 'cell-restored') {
    const [before, now] = [previous.cells[event.cell], state.cells[event.cell]]
    // One that came back with weights published before is restored once more.
    const isAgain = now?.phase === 'restarted' || now?.phase === 'restoring'
    return before?.epoch === event.epoch && before.phase === 'restoring' && !isAgain
  }
  if (event.kind !== 'standalone-recovered') return false
  const [before, now] = [previous.standalone[event.engine], state.standalone[event.engine]]
  return before?.phase === 'failed' && now?.phase === 'serving'
}

export class Onlooker {
  readonly #options: ControllerOptions
  readonly #usage: UsageMeter
  readonly #steps: StepMeter
  readonly #transfers = new TransferLog()
  readonly #failedAt = new Map<string, number>()
  readonly #reasons = new Map<string, string>()
  readonly #onCommand: Looks
  readonly #joiningSince = new Map<number, number>()
  #state: SchedulerState
  #startedMs = 0
  #cellRestarts = 0
  #executionsCut = 0
  #tokensHandedOver = 0

  constructor(options: ControllerOptions) {
    this.#options = options
    this.#state = options.initial
    this.#usage = new UsageMeter(options.initial, this.#now())
    this.#steps = new StepMeter(this.#now())
    this.#onCommand = this.#commandTable()
  }

  /** What a command tells before it is carried out. */
  #commandTable(): Looks {
    const log = this.#transfers
    return {
      'hand-over': ({ cell, moves }, nowMs) => this.#beginTransfer(cell, 'training', moves.length, nowMs),
      'cancel-in-flight': ({ cell, moved }, nowMs) => {
        this.#beginTransfer(cell, 'training', moved, nowMs)
        log.enter(cell, 'cancel', nowMs)
      },
      'enter-training': ({ cell }, nowMs) => log.enter(cell, 'enter', nowMs),
      publish: ({ cell, enterRollout }, nowMs) => {
        if (enterRollout) this.#beginTransfer(cell, 'rollout', 0, nowMs)
      },
      'join-step': ({ cell }, nowMs) => {
        this.#joiningSince.set(cell, nowMs)
      },
      'cut-execution': ({ executionId }) => {
        this.#executionsCut++
        this.tell({ kind: 'execution-cut', executionId })
      },
      'restart-cell': ({ cell }) => {
        this.#cellRestarts++
        log.drop(cell)
        this.#tellFailure(`cell ${cell}`, (reason) => ({ kind: 'cell-failed', cell, reason }))
      },
      'recover-standalone': ({ engine }) =>
        this.#tellFailure(`engine ${engine}`, (reason) => ({ kind: 'standalone-failed', engine, reason })),
    }
  }

  begin(): void {
    this.#startedMs = this.#now()
    this.#usage.observe(this.#state, this.#startedMs)
  }

  tell(fact: Fact): void {
    this.#options.onEvent?.({ ...fact, atMs: this.#now(), snapshot: this.snapshot() })
  }

  snapshot(): ControllerSnapshot {
    return snapshotOf(this.#state)
  }

  usage(): readonly CellUsage[] {
    this.#usage.observe(this.#state, this.#now())
    const { cells } = this.#options.supervisor
    return this.#usage.read().flatMap((usage, index) => {
      const cell = cells[index]
      return cell === undefined ? [] : [{ cellId: cell.cellId, ...usage }]
    })
  }

  /** Why a cell is about to be reported as failed. */
  cellFails(cell: number, reason: string): void {
    this.#reasons.set(`cell ${cell}`, reason)
  }

  engineFails(engine: number, reason: string): void {
    this.#reasons.set(`engine ${engine}`, reason)
  }

  trained(groupId: GroupId, index: number, result: ForwardBackwardResult): void {
    this.#steps.trained(groupId, index, result)
  }

  optimized(gradientNorm: number): void {
    this.#steps.optimized(gradientNorm)
  }

  /** The scheduler moved on: time until now was spent under the state before. */
  moved(state: SchedulerState): void {
    this.#state = state
    this.#usage.observe(state, this.#now())
    this.#steps.observe(state)
    this.#transfers.observe(state.cells)
  }

  /** A command is about to be carried out. */
  command(command: Command): void {
    const nowMs = this.#now()
    this.#steps.command(command, nowMs)
    const look = this.#onCommand[command.kind] as ((command: Command, nowMs: number) => void) | undefined
    look?.(command, nowMs)
  }

  handedOver(cell: number, fetched: FetchedKv): void {
    this.#tokensHandedOver += fetched.tokens
    this.#steps.handedOver(fetched.tokens)
    this.#transfers.handedOver(cell, fetched)
  }

  requestsMoved(cell: number, requests: number): void {
    this.#transfers.moved(cell, requests)
  }

  /** Metrics of the step that is done. */
  stepDone(command: CommandOf<'step-done'>): StepSummary {
    const groups = command.groups.map((g) => g.groupId)
    const metrics = this.#steps.finish(command, this.#now())
    return { step: command.step, burst: command.burst, groups, metrics }
  }

  /** What an event that the scheduler accepted means. */
  narrate(event: SchedulerEvent, previous: SchedulerState): void {
    if (hasReturned(event, previous, this.#state)) this.#tellReturn(event)
    if (!('cell' in event)) return
    const { cell } = event
    const before = previous.cells[cell]
    if (before?.epoch !== event.epoch) return
    if (event.kind === 'entered-training' || (event.kind === 'published' && before.phase === 'returning'))
      this.#endTransfer(cell)
    if (event.kind === 'published') this.tell({ kind: 'published', cell, version: event.version })
    if (event.kind === 'joined' && before.joining) this.#tellJoined(cell, event.step)
    this.#steps.answered(event, before)
    if (event.kind === 'micro-step-done' && before.claim?.key === event.key)
      this.tell({ kind: 'micro-step', cell, step: previous.step, groupId: before.claim.groupId })
  }

  summary(outcome: RunSummary['outcome'], reason: string): RunSummary {
    return {
      outcome,
      reason: reason + (outcome === 'failed' ? this.#lastWords() : ''),
      steps: this.#state.step,
      policyVersion: this.#state.policyVersion,
      durationMs: this.#now() - this.#startedMs,
      roleTransfers: this.#transfers.total,
      liveRoleTransfers: this.#transfers.live,
      requestsMoved: this.#transfers.requestsMoved,
      tokensHandedOver: this.#tokensHandedOver,
      executionsCut: this.#executionsCut,
      cellRestarts: this.#cellRestarts,
      excludedGroups: this.#state.excludedGroups,
      cells: this.usage(),
    }
  }

  #now(): number {
    return this.#options.clock.now()
  }

  /** A transfer that began with a hand-over goes on. */
  #beginTransfer(cell: number, to: 'training' | 'rollout', executionsMoved: number, nowMs: number): void {
    const liveExecutions = this.#state.started - this.#state.terminated
    this.#transfers.begin(cell, { to, liveExecutions, executionsMoved, nowMs })
  }

  #endTransfer(cell: number): void {
    const transfer = this.#transfers.end(cell, this.#now())
    if (transfer !== undefined) this.tell({ kind: 'role-transfer', ...transfer })
  }

  #tellJoined(cell: number, step: number): void {
    const nowMs = this.#now()
    this.tell({ kind: 'joined', cell, step, durationMs: nowMs - (this.#joiningSince.get(cell) ?? nowMs) })
  }

  #tellReturn(event: SchedulerEvent): void {
    if (event.kind === 'cell-restored') {
      const { cell } = event
      this.tell({ kind: 'cell-recovered', cell, durationMs: this.#sinceFailure(`cell ${cell}`) })
    } else if (event.kind === 'standalone-recovered') {
      const { engine } = event
      this.tell({ kind: 'standalone-recovered', engine, durationMs: this.#sinceFailure(`engine ${engine}`) })
    }
  }

  /** Once per failure: a restart or a question may be repeated. */
  #tellFailure(who: string, fact: (reason: string) => Fact): void {
    if (this.#failedAt.has(who)) return
    this.#failedAt.set(who, this.#now())
    this.tell(fact(this.#reasons.get(who) ?? 'unknown'))
  }

  #sinceFailure(who: string): number {
    const nowMs = this.#now()
    const sinceMs = this.#failedAt.get(who) ?? nowMs
    this.#failedAt.delete(who)
    return nowMs - sinceMs
  }

  /** What the cells that are down said before they went. */
  #lastWords(): string {
    const down = this.#state.cells.flatMap((cell, index) => (cell.phase === 'failed' ? [`cell ${index}`] : []))
    return down.map((who) => `; ${who}: ${this.#reasons.get(who) ?? 'unknown'}`).join('')
  }
}
