/** @file Carries out what the scheduler asks for, at the cells, the forwarding point and the run's own work. */
import { errorText } from '../core/errors.ts'
import type { EngineId } from '../core/ids.ts'
import type { RouteChange } from '../ports/forwarding.ts'
import type { Command, ScheduledRoute, SchedulerEvent } from '../scheduler/messages.ts'
import type { Destination, SchedulerState } from '../scheduler/types.ts'
import { Books } from './controller-books.ts'
import { CellCommands, type CellVerb } from './controller-cells.ts'
import { handOver } from './controller-handover.ts'
import { hasReturned, type Onlooker } from './controller-onlooker.ts'
import { StandaloneCommands } from './controller-standalone.ts'
import type { CommandOf, ControllerOptions } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

/** Between two tries to start a cell that does not start. [ms] */
const RESTART_PAUSE_MS = 500

/** Undefined for a command that takes no time, and no event for one that has nothing to say. */
type Answer = Promise<SchedulerEvent | undefined> | undefined
type Handlers = {
  readonly [K in Command['kind']]: (command: CommandOf<K>) => Promise<SchedulerEvent | undefined> | void
}

export interface CommandDeps {
  readonly options: ControllerOptions
  readonly waits: Waits
  readonly onlooker: Onlooker
  readonly state: () => SchedulerState
  readonly post: (event: SchedulerEvent) => void
  readonly finish: (outcome: 'done' | 'failed', reason: string) => void
}

export class Commands {
  readonly #deps: CommandDeps
  readonly #cells: CellCommands
  readonly #standalone: StandaloneCommands
  readonly #books: Books
  readonly #handlers: Handlers
  readonly #underway = new Set<Promise<void>>()
  /** Times the scheduler wants to be woken at. [ms] */
  readonly #wakes = new Set<number>()

  constructor(deps: CommandDeps) {
    this.#deps = deps
    const { options, waits, onlooker, state } = deps
    const { supervisor, forwarding, standalone, work, clock, deadlines } = options
    this.#cells = new CellCommands({
      supervisor,
      deadlines,
      clock,
      waits,
      work,
      batchOf: (groupId, index) => this.#books.batchOf(groupId, index),
      heldOf: (groupId, index) => this.#books.heldOf(groupId, index),
      folderOf: (version) => this.#books.folderOf(version),
      reports: {
        trained: (groupId, index, batch, result) => {
          onlooker.trained(groupId, index, result)
          work.observe?.(groupId, batch, result)
        },
        optimized: (gradientNorm) => onlooker.optimized(gradientNorm),
        failed: (cell, reason) => onlooker.cellFails(cell, reason),
        slow: (cell, waitedMs, usualMs) => onlooker.tell({ kind: 'cell-slow', cell, waitedMs, usualMs }),
      },
    })
    this.#books = new Books({
      options,
      waits,
      save: (epoch, folder, policyVersion) => this.#cells.save(epoch, folder, policyVersion),
      coreEpoch: () => state().cells[0]?.epoch ?? 0,
      coreFailed: (reason) => onlooker.cellFails(0, reason),
      abort: (reason) => deps.post({ kind: 'fatal', reason }),
      tell: (fact) => onlooker.tell(fact),
    })
    this.#standalone = new StandaloneCommands({
      engines: standalone,
      forwarding,
      deadlines,
      waits,
      published: () => this.#books.published,
      failed: (engine, reason) => onlooker.engineFails(engine, reason),
    })
    this.#handlers = this.#table()
  }

  /** Before the run: every cell and engine begins with the same weights, whoever used it before. */
  async open(): Promise<void> {
    const { cells, standalone } = this.#deps.state()
    await Promise.all([
      ...cells.map((cell, index) => this.#openCell(index, cell.epoch)),
      ...standalone.map((engine, index) => this.#openEngine(index, engine.epoch)),
    ])
  }

  carryOut(command: Command): void {
    const { onlooker, post } = this.#deps
    try {
      onlooker.command(command)
      const handle = this.#handlers[command.kind] as (command: Command) => Answer
      const answer = handle(command)
      if (answer !== undefined) this.#await(command, answer)
    } catch (error) {
      post({ kind: 'fatal', reason: `${command.kind}: ${errorText(error)}` })
    }
  }

  #table(): Handlers {
    const { options, onlooker, finish } = this.#deps
    const { work, forwarding } = options
    const onCell = (command: CellVerb): Answer => this.#cells.execute(command)
    return {
      'create-groups': (command) => this.#createGroups(command),
      'start-execution': ({ executionId }) => {
        work.startExecution(executionId)
        onlooker.tell({ kind: 'execution-started', executionId })
      },
      'new-attempt': (command) => this.#newAttempt(command),
      'cut-execution': ({ executionId }) => work.cutExecution(executionId),
      wake: ({ atMs }) => this.#wake(atMs),
      'set-routes': ({ routes }) => forwarding.setRoutes(routes.map((route) => this.#routeChange(route))),
      'hand-over': (command) => this.#handOver(command),
      'cancel-in-flight': (command) => this.#cancelInFlight(command),
      'enter-training': onCell,
      'build-micro-steps': (command) => this.#books.build(command),
      'join-step': onCell,
      train: onCell,
      'hold-gradient': onCell,
      'apply-held': onCell,
      reduce: onCell,
      optimize: onCell,
      'step-done': (command) => this.#stepDone(command),
      'steps-undone': ({ toStep }) => {
        onlooker.tell({ kind: 'steps-undone', toStep })
        this.#books.stepsUndone(toStep)
      },
      checkpoint: (command) => this.#books.checkpoint(command),
      publish: onCell,
      'publish-standalone': (command) => this.#standalone.publish(command),
      'recover-standalone': (command) => this.#standalone.recover(command),
      'restart-cell': (command) => this.#restartCell(command),
      'restore-cell': onCell,
      finish: ({ outcome, reason }) => finish(outcome, reason),
    }
  }

  /** A cell or engine that came back serves again. */
  welcome(event: SchedulerEvent, previous: SchedulerState): void {
    const { state, options } = this.#deps
    if (!hasReturned(event, previous, state())) return
    if (event.kind === 'cell-restored') options.forwarding.setEngine(this.#cells.cell(event.cell))
    if (event.kind === 'standalone-recovered') options.forwarding.setEngine(this.#standalone.engine(event.engine))
  }

  /** Once nothing is under way any more. */
  async settled(): Promise<void> {
    while (this.#underway.size > 0) await Promise.allSettled(this.#underway)
    await this.#books.settled()
  }

  async #openCell(index: number, epoch: number): Promise<void> {
    const { options, onlooker, post } = this.#deps
    try {
      await this.#cells.load(index, epoch, options.checkpointFolder, options.initial.policyVersion)
      options.forwarding.setEngine(this.#cells.cell(index))
    } catch (error) {
      onlooker.cellFails(index, errorText(error))
      post({ kind: 'cell-failed', cell: index, epoch })
    }
  }

  async #openEngine(engine: number, epoch: number): Promise<void> {
    try {
      await this.#standalone.open(engine)
    } catch (error) {
      this.#deps.onlooker.engineFails(engine, errorText(error))
      this.#deps.post({ kind: 'standalone-failed', engine, epoch })
    }
  }

  #await(command: Command, answer: Promise<SchedulerEvent | undefined>): void {
    const running = this.#report(command, answer).finally(() => this.#underway.delete(running))
    this.#underway.add(running)
  }

  /** What a handler throws is not a cell's failure, so it ends the run. */
  async #report(command: Command, answer: Promise<SchedulerEvent | undefined>): Promise<void> {
    let event: SchedulerEvent | undefined
    try {
      event = await answer
    } catch (error) {
      event = { kind: 'fatal', reason: `${command.kind}: ${errorText(error)}` }
    }
    if (event !== undefined) this.#deps.post(event)
  }

  #createGroups(command: CommandOf<'create-groups'>): void {
    const { options, onlooker, post } = this.#deps
    const { count, dispatchVersion, burst } = command
    const groups = options.work.createGroups({ count, dispatchVersion, burst })
    post({ kind: 'groups-created', groups })
    onlooker.tell({ kind: 'dispatched', burst, dispatchVersion, groups: groups.map((g) => g.groupId) })
  }

  #newAttempt({ executionId }: CommandOf<'new-attempt'>): void {
    const { options, onlooker, post } = this.#deps
    const nextId = options.work.newAttempt(executionId)
    onlooker.tell({ kind: 'execution-retried', executionId, nextId })
    post({ kind: 'attempt-created', executionId, nextId })
  }

  #wake(atMs: number): void {
    if (this.#wakes.has(atMs)) return
    this.#wakes.add(atMs)
    this.#deps.waits.alarm(atMs, () => {
      this.#wakes.delete(atMs)
      this.#deps.post({ kind: 'tick' })
    })
  }

  #stepDone(command: CommandOf<'step-done'>): void {
    const summary = this.#deps.onlooker.stepDone(command)
    this.#deps.onlooker.tell({ kind: 'step', summary })
    this.#books.stepDone(summary)
  }

  #routeChange({ executionId, destination, routeEpoch }: ScheduledRoute): RouteChange {
    return { executionId, engineId: destination === undefined ? undefined : this.#engineOf(destination), routeEpoch }
  }

  #engineOf({ kind, index }: Destination): EngineId {
    return kind === 'cell' ? this.#cells.cell(index).id : this.#standalone.engine(index).id
  }

  async #handOver(command: CommandOf<'hand-over'>): Promise<SchedulerEvent> {
    const { options, waits, onlooker, state } = this.#deps
    const deps = {
      waits,
      handoverMs: options.deadlines.handoverMs,
      cell: (index: number) => this.#cells.cell(index),
      epochOf: (index: number) => state().cells[index]?.epoch ?? 0,
      onMiss: (reason: string) => onlooker.tell({ kind: 'hand-over-missed', cell: command.cell, reason }),
    }
    onlooker.handedOver(command.cell, await handOver(deps, command))
    return { kind: 'handed-over', transferId: command.transferId }
  }

  async #cancelInFlight(command: CommandOf<'cancel-in-flight'>): Promise<SchedulerEvent> {
    const { options, waits, onlooker } = this.#deps
    const { cell, epoch, transferId } = command
    try {
      const cancelling = options.forwarding.cancelInFlight(this.#cells.cell(cell).id)
      const what = `moving the requests of cell ${cell}`
      onlooker.requestsMoved(cell, await waits.within(cancelling, options.deadlines.cancelMs, what))
      return { kind: 'cancelled', transferId }
    } catch (error) {
      onlooker.cellFails(cell, errorText(error))
      return { kind: 'cell-failed', cell, epoch }
    }
  }

  async #restartCell({ cell, epoch }: CommandOf<'restart-cell'>): Promise<SchedulerEvent> {
    const { options, waits, onlooker } = this.#deps
    options.forwarding.removeEngine(this.#cells.cell(cell).id)
    try {
      const restarting = options.supervisor.restart(cell)
      await waits.within(restarting, options.deadlines.restartMs, `restarting cell ${cell}`)
      return { kind: 'cell-restarted', cell, epoch }
    } catch (error) {
      onlooker.cellFails(cell, errorText(error))
      await waits.pause(RESTART_PAUSE_MS)
      return { kind: 'restart-failed', cell, epoch }
    }
  }
}
