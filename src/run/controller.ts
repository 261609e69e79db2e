/**
 * @file The live controller: feeds the scheduler one event at a time and has its commands carried out. It decides
 * nothing; every rule is in src/scheduler.
 */
import type { ExecutionId } from '../core/ids.ts'
import { advance } from '../scheduler/advance.ts'
import { checkInvariants } from '../scheduler/invariants.ts'
import type { SchedulerEvent } from '../scheduler/messages.ts'
import type { SchedulerState } from '../scheduler/types.ts'
import { Commands } from './controller-commands.ts'
import { Heartbeats } from './controller-heartbeats.ts'
import { Onlooker } from './controller-onlooker.ts'
import type { CellUsage, Controller, ControllerOptions, ControllerSnapshot, RunSummary } from './controller-types.ts'
import { Waits } from './controller-waits.ts'

export class ElasticController implements Controller {
  readonly #options: ControllerOptions
  readonly #waits: Waits
  readonly #onlooker: Onlooker
  readonly #commands: Commands
  readonly #heartbeats: Heartbeats
  readonly #queue: SchedulerEvent[] = []
  #state: SchedulerState
  #isDraining = false
  #finish: ((summary: RunSummary) => void) | undefined

  constructor(options: ControllerOptions) {
    this.#options = options
    this.#state = options.initial
    this.#waits = new Waits(options.clock, options.timers)
    this.#onlooker = new Onlooker(options)
    const state = (): SchedulerState => this.#state
    const post = (event: SchedulerEvent): void => this.#post(event)
    const shared = { options, waits: this.#waits, state, post }
    this.#commands = new Commands({
      ...shared,
      onlooker: this.#onlooker,
      finish: (outcome, reason) => this.#end(outcome, reason),
    })
    this.#heartbeats = new Heartbeats({
      ...shared,
      cellFails: (cell, reason) => this.#onlooker.cellFails(cell, reason),
      engineFails: (engine, reason) => this.#onlooker.engineFails(engine, reason),
    })
  }

  async run(): Promise<RunSummary> {
    const ended = new Promise<RunSummary>((resolve) => {
      this.#finish = resolve
    })
    this.#onlooker.begin()
    this.#options.supervisor.onDeath((index) => {
      this.#onlooker.cellFails(index, 'its process ended')
      this.#post({ kind: 'cell-failed', cell: index, epoch: this.#state.cells[index]?.epoch ?? 0 })
    })
    await this.#commands.open()
    this.#heartbeats.begin()
    this.#post({ kind: 'start' })
    return ended
  }

  executionEnded(executionId: ExecutionId): void {
    this.#post({ kind: 'execution-ended', executionId })
  }

  executionScored(executionId: ExecutionId): void {
    this.#post({ kind: 'execution-scored', executionId })
    this.#onlooker.tell({ kind: 'execution-finished', executionId, how: 'scored', reason: '' })
  }

  executionExcluded(executionId: ExecutionId, reason: string): void {
    this.#post({ kind: 'execution-excluded', executionId })
    this.#onlooker.tell({ kind: 'execution-finished', executionId, how: 'excluded', reason })
  }

  executionFailed(executionId: ExecutionId, reason: string): void {
    this.#onlooker.tell({ kind: 'execution-failed', executionId, reason })
    this.#post({ kind: 'execution-failed', executionId })
  }

  async stop(): Promise<void> {
    this.#post({ kind: 'stop' })
    this.#waits.close()
    await this.#commands.settled()
    this.#end('stopped', '')
  }

  abort(reason: string): void {
    this.#post({ kind: 'fatal', reason })
  }

  snapshot(): ControllerSnapshot {
    return this.#onlooker.snapshot()
  }

  usage(): readonly CellUsage[] {
    return this.#onlooker.usage()
  }

  state(): SchedulerState {
    return this.#state
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
    const { state, commands } = advance(previous, event, this.#options.clock.now())
    if (state === previous) return
    this.#state = state
    this.#onlooker.moved(state)
    const [broken] = checkInvariants(state, previous)
    if (broken !== undefined && state.phase !== 'failed') {
      this.#queue.unshift({ kind: 'fatal', reason: `broken invariant after ${event.kind}: ${broken}` })
      return
    }
    this.#commands.welcome(event, previous)
    this.#onlooker.narrate(event, previous)
    for (const command of commands) this.#commands.carryOut(command)
  }

  #end(outcome: RunSummary['outcome'], reason: string): void {
    const finish = this.#finish
    if (finish === undefined) return
    this.#finish = undefined
    this.#waits.close()
    this.#onlooker.tell({ kind: 'finished', outcome })
    finish(this.#onlooker.summary(outcome, reason))
  }
}
