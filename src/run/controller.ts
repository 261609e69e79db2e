/**
 * @file The live controller: feeds the scheduler one event at a time and carries out its commands through the
 * cells, the forwarding point and the run's own work. It decides nothing; every rule is in src/scheduler.
 */
import type { Clock } from '../core/clock.ts'
import { errorText, invariant } from '../core/errors.ts'
import type { EngineId, ExecutionId, GroupId } from '../core/ids.ts'
import { advance } from '../scheduler/advance.ts'
import { checkInvariants } from '../scheduler/invariants.ts'
import type { Command, Destination, ScheduledRoute, SchedulerEvent, SchedulerState } from '../scheduler/types.ts'
import type { MicroBatch } from '../training/batch.ts'
import { CellCommands } from './controller-cells.ts'
import { snapshotOf, StepMeter, UsageMeter } from './controller-meters.ts'
import { TransferLog } from './controller-transfers.ts'
import type {
  CellUsage,
  Controller,
  ControllerEvent,
  ControllerOptions,
  ControllerSnapshot,
  RoleTransfer,
  RunSummary,
} from './controller-types.ts'
import { Waits } from './controller-waits.ts'

/** Between two tries to start a cell that does not start. [ms] */
const RESTART_PAUSE_MS = 500

type Of<K extends Command['kind']> = Extract<Command, { readonly kind: K }>
/** An event without what the controller adds to every one. */
type Fact = ControllerEvent extends infer E ? (E extends ControllerEvent ? Omit<E, 'atMs' | 'snapshot'> : never) : never

export class ElasticController implements Controller {
  readonly #options: ControllerOptions
  readonly #clock: Clock
  readonly #waits: Waits
  readonly #commands: CellCommands
  readonly #usage: UsageMeter
  readonly #steps: StepMeter
  readonly #queue: SchedulerEvent[] = []
  readonly #underway = new Set<Promise<void>>()
  readonly #batches = new Map<GroupId, readonly MicroBatch[]>()
  /** Checkpoint folder by the policy version in it. */
  readonly #folders = new Map<number, string>()
  readonly #transfers = new TransferLog()
  readonly #failedAt = new Map<number, number>()
  readonly #reasons = new Map<number, string>()
  #state: SchedulerState
  #isDraining = false
  /** Summaries are handed over in order, and before the checkpoint that holds them. */
  #handover: Promise<void> = Promise.resolve()
  #startedMs = 0
  #cellRestarts = 0
  #finish: ((summary: RunSummary) => void) | undefined

  constructor(options: ControllerOptions) {
    this.#options = options
    this.#clock = options.clock
    this.#waits = new Waits(options.timers)
    this.#state = options.initial
    this.#folders.set(options.initial.policyVersion, options.checkpointFolder)
    this.#usage = new UsageMeter(this.#state, options.clock.now())
    this.#steps = new StepMeter(options.clock.now())
    this.#commands = new CellCommands({
      supervisor: options.supervisor,
      deadlines: options.deadlines,
      waits: this.#waits,
      work: options.work,
      batchOf: (groupId, index) => this.#batchOf(groupId, index),
      folderOf: (version) => this.#folderOf(version),
      reports: {
        trained: (groupId, index, batch, result) => {
          this.#steps.trained(groupId, index, result)
          options.work.observe?.(groupId, batch, result)
        },
        optimized: (gradientNorm) => this.#steps.optimized(gradientNorm),
        failed: (cell, reason) => this.#reasons.set(cell, reason),
      },
    })
  }

  async run(): Promise<RunSummary> {
    const { supervisor, forwarding, standalone } = this.#options
    const ended = new Promise<RunSummary>((resolve) => {
      this.#finish = resolve
    })
    this.#startedMs = this.#clock.now()
    this.#usage.observe(this.#state, this.#startedMs)
    supervisor.onDeath((index) => {
      this.#reasons.set(index, 'its process ended')
      this.#post({ kind: 'cell-failed', cell: index, epoch: this.#state.cells[index]?.epoch ?? 0 })
    })
    for (const engine of standalone) forwarding.setEngine(engine)
    await Promise.all(this.#state.cells.map((_, index) => this.#open(index)))
    this.#post({ kind: 'start' })
    return ended
  }

  executionEnded(executionId: ExecutionId): void {
    this.#post({ kind: 'execution-ended', executionId })
  }

  executionScored(executionId: ExecutionId): void {
    this.#post({ kind: 'execution-scored', executionId })
    this.#tell({ kind: 'execution-finished', executionId, how: 'scored', reason: '' })
  }

  executionExcluded(executionId: ExecutionId, reason: string): void {
    this.#post({ kind: 'execution-excluded', executionId })
    this.#tell({ kind: 'execution-finished', executionId, how: 'excluded', reason })
  }

  executionFailed(executionId: ExecutionId, reason: string): void {
    this.#tell({ kind: 'execution-failed', executionId, reason })
    this.#post({ kind: 'execution-failed', executionId })
  }

  async stop(): Promise<void> {
    this.#post({ kind: 'stop' })
    while (this.#underway.size > 0) await Promise.allSettled(this.#underway)
    await this.#handover.catch(() => undefined)
    this.#end('stopped', '')
  }

  abort(reason: string): void {
    this.#post({ kind: 'fatal', reason })
  }

  snapshot(): ControllerSnapshot {
    return snapshotOf(this.#state)
  }

  usage(): readonly CellUsage[] {
    this.#usage.observe(this.#state, this.#clock.now())
    return this.#usage.read().map((usage, index) => ({ cellId: this.#commands.cell(index).cellId, ...usage }))
  }

  state(): SchedulerState {
    return this.#state
  }

  /** Every cell begins with the same weights, whoever used it before. */
  async #open(index: number): Promise<void> {
    const { epoch } = this.#state.cells[index] ?? { epoch: 0 }
    const { checkpointFolder, forwarding } = this.#options
    try {
      await this.#commands.load(index, epoch, checkpointFolder, this.#state.policyVersion)
      forwarding.setEngine(this.#commands.cell(index))
    } catch (error) {
      this.#reasons.set(index, errorText(error))
      this.#post({ kind: 'cell-failed', cell: index, epoch })
    }
  }

  /** One event at a time: what a command causes at once waits until the present event is done. */
  #post(event: SchedulerEvent): void {
    this.#queue.push(event)
    if (this.#isDraining) return
    this.#isDraining = true
    try {
      for (let next = this.#queue.shift(); next !== undefined; next = this.#queue.shift()) this.#take(next)
    } finally {
      this.#isDraining = false
    }
  }

  #take(event: SchedulerEvent): void {
    const previous = this.#state
    const { state, commands } = advance(previous, event, this.#clock.now())
    if (state === previous) return
    this.#state = state
    this.#usage.observe(state, this.#clock.now())
    const [broken] = checkInvariants(state, previous)
    if (broken !== undefined && state.phase !== 'failed') {
      this.#queue.unshift({ kind: 'fatal', reason: `broken invariant after ${event.kind}: ${broken}` })
      return
    }
    this.#narrate(event, previous)
    for (const command of commands) this.#carryOut(command)
  }

  #carryOut(command: Command): void {
    try {
      this.#steps.command(command, this.#clock.now())
      this.#obey(command)
    } catch (error) {
      this.#queue.push({ kind: 'fatal', reason: `${command.kind}: ${errorText(error)}` })
    }
  }

  #obey(command: Command): void {
    const { work, forwarding } = this.#options
    switch (command.kind) {
      case 'create-groups':
        this.#createGroups(command)
        return
      case 'start-execution':
        work.startExecution(command.executionId)
        this.#tell({ kind: 'execution-started', executionId: command.executionId })
        return
      case 'new-attempt': {
        const nextId = work.newAttempt(command.executionId)
        this.#tell({ kind: 'execution-retried', executionId: command.executionId, nextId })
        this.#queue.push({ kind: 'attempt-created', executionId: command.executionId, nextId })
        return
      }
      case 'set-routes':
        forwarding.setRoutes(command.routes.map((route) => this.#routeChange(route)))
        return
      case 'cut-execution':
        work.cutExecution(command.executionId)
        return
      case 'wake':
      case 'hand-over':
      case 'publish-standalone':
      case 'recover-standalone':
        return
      case 'cancel-in-flight':
        this.#background(() => this.#cancelInFlight(command))
        return
      case 'build-micro-steps':
        this.#background(() => this.#buildMicroSteps(command))
        return
      case 'checkpoint':
        this.#background(() => this.#checkpoint(command))
        return
      case 'step-done':
        this.#stepDone(command)
        return
      case 'steps-undone':
        this.#stepsUndone(command)
        return
      case 'restart-cell':
        this.#background(() => this.#restartCell(command))
        return
      case 'finish':
        this.#end(command.outcome, command.reason + this.#lastWords())
        return
      case 'publish':
        if (command.enterRollout) this.#beginSwitch(command.cell, 'rollout', 0)
        this.#background(() => this.#commands.execute(command))
        return
      case 'enter-training':
      case 'join-step':
      case 'train':
      case 'reduce':
      case 'optimize':
      case 'restore-cell':
        this.#background(() => this.#commands.execute(command))
        return
      default:
        command satisfies never
    }
  }

  /** Runs until it has an event to report. What it throws is not a cell's failure, so it ends the run. */
  #background(work: () => Promise<SchedulerEvent>): void {
    const running = this.#report(work).finally(() => this.#underway.delete(running))
    this.#underway.add(running)
  }

  async #report(work: () => Promise<SchedulerEvent>): Promise<void> {
    let event: SchedulerEvent
    try {
      event = await work()
    } catch (error) {
      event = { kind: 'fatal', reason: errorText(error) }
    }
    this.#post(event)
  }

  #createGroups(command: Of<'create-groups'>): void {
    const { count, dispatchVersion, burst } = command
    const groups = this.#options.work.createGroups({ count, dispatchVersion, burst })
    this.#queue.push({ kind: 'groups-created', groups })
    this.#tell({ kind: 'dispatched', burst, dispatchVersion, groups: groups.map((g) => g.groupId) })
  }

  #routeChange(route: ScheduledRoute): {
    executionId: ExecutionId
    engineId: EngineId | undefined
    routeEpoch: number
  } {
    const { executionId, destination, routeEpoch } = route
    return { executionId, engineId: destination === undefined ? undefined : this.#engineOf(destination), routeEpoch }
  }

  #engineOf(destination: Destination): EngineId {
    if (destination.kind === 'cell') return this.#commands.cell(destination.index).id
    const engine = this.#options.standalone[destination.index]
    invariant(engine !== undefined, `there is a standalone engine ${destination.index}`)
    return engine.id
  }

  async #cancelInFlight(command: Of<'cancel-in-flight'>): Promise<SchedulerEvent> {
    this.#beginSwitch(command.cell, 'training', command.moved)
    try {
      const cancelling = this.#options.forwarding.cancelInFlight(this.#commands.cell(command.cell).id)
      const what = `moving the requests of cell ${command.cell}`
      const moved = await this.#waits.within(cancelling, this.#options.deadlines.cancelMs, what)
      this.#transfers.moved(command.cell, moved)
      return { kind: 'cancelled', transferId: command.transferId }
    } catch (error) {
      this.#reasons.set(command.cell, errorText(error))
      return { kind: 'cell-failed', cell: command.cell, epoch: command.epoch }
    }
  }

  async #buildMicroSteps(command: Of<'build-micro-steps'>): Promise<SchedulerEvent> {
    const { groupId, step } = command
    const batches = await this.#options.work.microSteps(groupId, step)
    this.#batches.set(groupId, batches)
    this.#tell({ kind: 'group-assigned', groupId, step, microSteps: batches.length })
    return { kind: 'micro-steps-built', groupId, step, attempt: command.attempt, count: batches.length }
  }

  #batchOf(groupId: GroupId, index: number): MicroBatch {
    const batch = this.#batches.get(groupId)?.[index]
    invariant(batch !== undefined, `micro-step ${index} of group ${groupId} was built`)
    return batch
  }

  #folderOf(policyVersion: number): string {
    const folder = this.#folders.get(policyVersion)
    invariant(folder !== undefined, `a checkpoint holds policy version ${policyVersion}`)
    return folder
  }

  #stepDone(command: Of<'step-done'>): void {
    const groups = command.groups.map((g) => g.groupId)
    const metrics = this.#steps.finish(command, this.#clock.now())
    const summary = { step: command.step, burst: command.burst, groups, metrics }
    this.#tell({ kind: 'step', summary })
    this.#handOver(() => this.#options.work.stepDone(summary))
  }

  #stepsUndone(command: Of<'steps-undone'>): void {
    this.#tell({ kind: 'steps-undone', toStep: command.toStep })
    this.#handOver(() => this.#options.work.stepsUndone(command.toStep))
  }

  #handOver(give: () => void | Promise<void>): void {
    this.#handover = this.#handover.then(give)
    this.#handover.catch((error: unknown) => this.abort(`the books of a step cannot be kept: ${errorText(error)}`))
  }

  async #checkpoint(command: Of<'checkpoint'>): Promise<SchedulerEvent> {
    const { work } = this.#options
    const { step, burst, policyVersion, groups } = command
    const sinceMs = this.#clock.now()
    const folder = await work.checkpointFolder(step)
    try {
      await this.#commands.save(command.epoch, folder, policyVersion)
    } catch (error) {
      this.#reasons.set(0, errorText(error))
      return { kind: 'checkpoint-failed', step }
    }
    await this.#handover
    const summary = { step, burst, policyVersion, folder, groups }
    await work.checkpoint(summary)
    this.#folders.clear()
    this.#folders.set(policyVersion, folder)
    for (const groupId of groups) this.#batches.delete(groupId)
    this.#tell({ kind: 'checkpoint', summary, durationMs: this.#clock.now() - sinceMs })
    return { kind: 'checkpointed', step }
  }

  async #restartCell(command: Of<'restart-cell'>): Promise<SchedulerEvent> {
    const { cell, epoch } = command
    const { supervisor, forwarding, deadlines } = this.#options
    if (!this.#failedAt.has(cell)) {
      this.#failedAt.set(cell, this.#clock.now())
      this.#tell({ kind: 'cell-failed', cell, reason: this.#reasons.get(cell) ?? 'unknown' })
    }
    this.#transfers.drop(cell)
    this.#cellRestarts++
    forwarding.removeEngine(this.#commands.cell(cell).id)
    try {
      await this.#waits.within(supervisor.restart(cell), deadlines.restartMs, `restarting cell ${cell}`)
      return { kind: 'cell-restarted', cell, epoch }
    } catch (error) {
      this.#reasons.set(cell, errorText(error))
      await this.#waits.pause(RESTART_PAUSE_MS)
      return { kind: 'restart-failed', cell, epoch }
    }
  }

  #beginSwitch(cell: number, to: RoleTransfer['to'], executionsMoved: number): void {
    const liveExecutions = this.#state.started - this.#state.terminated
    this.#transfers.begin(cell, { to, liveExecutions, executionsMoved, nowMs: this.#clock.now() })
  }

  /** What an accepted event means to an onlooker. */
  #narrate(event: SchedulerEvent, previous: SchedulerState): void {
    if (!('cell' in event)) return
    const { cell } = event
    const before = previous.cells[cell]
    if (before?.epoch !== event.epoch) return
    if (event.kind === 'entered-training' || (event.kind === 'published' && before.phase === 'returning')) {
      const transfer = this.#transfers.end(cell, this.#clock.now())
      if (transfer !== undefined) this.#tell({ kind: 'role-transfer', ...transfer })
    }
    if (event.kind === 'micro-step-done' && before.claim?.key === event.key) {
      this.#tell({ kind: 'micro-step', cell, step: previous.step, groupId: before.claim.groupId })
    }
    if (event.kind === 'published') this.#tell({ kind: 'published', cell, version: event.version })
    const isBack = event.kind === 'cell-restored' && this.#state.cells[cell]?.policyVersion === event.version
    if (isBack && this.#state.cells[cell]?.phase !== 'restoring') this.#recovered(cell)
  }

  #recovered(cell: number): void {
    this.#options.forwarding.setEngine(this.#commands.cell(cell))
    const sinceMs = this.#failedAt.get(cell) ?? this.#clock.now()
    this.#failedAt.delete(cell)
    this.#tell({ kind: 'cell-recovered', cell, durationMs: this.#clock.now() - sinceMs })
  }

  #tell(fact: Fact): void {
    const { onEvent } = this.#options
    if (onEvent === undefined) return
    onEvent({ ...fact, atMs: this.#clock.now(), snapshot: this.snapshot() })
  }

  /** What the cells that are down said before they went. */
  #lastWords(): string {
    const down = this.#state.cells.flatMap((cell, index) => (cell.phase === 'failed' ? [index] : []))
    return down.map((index) => `; cell ${index}: ${this.#reasons.get(index) ?? 'unknown'}`).join('')
  }

  #end(outcome: RunSummary['outcome'], reason: string): void {
    const finish = this.#finish
    if (finish === undefined) return
    this.#finish = undefined
    this.#waits.close()
    this.#tell({ kind: 'finished', outcome })
    finish({
      outcome,
      reason,
      steps: this.#state.step,
      policyVersion: this.#state.policyVersion,
      durationMs: this.#clock.now() - this.#startedMs,
      roleTransfers: this.#transfers.total,
      liveRoleTransfers: this.#transfers.live,
      requestsMoved: this.#transfers.requestsMoved,
      cellRestarts: this.#cellRestarts,
      excludedGroups: this.#state.excludedGroups,
      cells: this.usage(),
    })
  }
}
