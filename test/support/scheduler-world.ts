/**
 * @file A small deterministic cluster for the scheduler's property tests: it answers commands in random order, late or
 * twice, kills cells and engines, loses answers, stops and resumes runs, and lets time jump. What it promises in return
 * is what the controller promises: every command is answered in the end, by its event or by a failure.
 */
import { executionId, groupId } from '../../src/core/ids.ts'
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import type { Rng } from '../../src/core/rng.ts'
import { resumedState } from '../../src/scheduler/state.ts'
import type { ResumedGroup } from '../../src/scheduler/state.ts'
import type { Advanced, Command, SchedulerEvent } from '../../src/scheduler/messages.ts'
import type { Destination, ExecutionSlot, SchedulerState } from '../../src/scheduler/types.ts'
import { failureOf, TestCluster, WorldError } from './scheduler-cluster.ts'
import type { Of, Process, ProcessCommand } from './scheduler-cluster.ts'
import type { WorldFaults, WorldOptions } from './scheduler-faults.ts'

type Task = () => readonly SchedulerEvent[]
export type Advance = (state: SchedulerState, event: SchedulerEvent, atMs: number) => Advanced
type OnEvent = (state: SchedulerState, previous: SchedulerState) => void

/** Said twice at once only: nothing tells them from the answer to a later command of their kind. */
const ECHOED_AT_ONCE: ReadonlySet<string> = new Set(['groups-created', 'checkpoint-failed'])
/** None of these may follow a stop. */
const BEGINNINGS: ReadonlySet<string> = new Set([
  'create-groups',
  'hand-over',
  'cancel-in-flight',
  'join-step',
  'train',
  'hold-gradient',
  'apply-held',
  'publish',
])

export class TestWorld {
  state: SchedulerState
  /** What happened, for tests that look at a history. */
  readonly log: Command[] = []
  events = 0
  readonly #advance: Advance
  readonly #onEvent: OnEvent
  readonly #options: WorldOptions
  readonly #rng: Rng
  readonly #cluster: TestCluster
  readonly #tasks: Task[] = []
  /** Faults spent so far. */
  readonly #spent = new Map<keyof WorldFaults, number>()
  readonly #over = new Set<ExecutionId>()
  #ids = 0
  #nowMs = 0

  constructor(initial: SchedulerState, options: WorldOptions, advance: Advance, onEvent: OnEvent) {
    this.state = initial
    this.#advance = advance
    this.#onEvent = onEvent
    this.#options = options
    this.#rng = seededRng(options.seed)
    this.#cluster = new TestCluster(initial.cells.length, initial.standalone.length, initial.step)
  }

  /** Runs until the scheduler finishes. @throws WorldError on a deadlock or a broken promise. */
  run(limit = 20_000): void {
    this.#send({ kind: 'start' })
    while (!this.#isOver()) {
      if (this.events > limit) throw new WorldError(`I11 no end after ${limit} events`)
      this.#interfere()
      if (this.#isOver()) break
      const answers = this.#next()
      if (answers !== undefined) for (const answer of answers) this.#report(answer)
      else if (this.state.stopping) this.#resume()
      else throw new WorldError(`I11 deadlock in phase ${this.state.phase}`)
    }
    if (this.state.phase === 'done') this.#checkEnd()
  }

  #noteFailure(event: Extract<SchedulerEvent, { readonly kind: 'standalone-failed' }>, previous: SchedulerState): void {
    const slot = previous.standalone[event.engine]
    const engine = this.#cluster.engines[event.engine]
    if (engine !== undefined && slot?.phase === 'serving' && slot.epoch === event.epoch) engine.isOut = true
  }

  #isOver(): boolean {
    return this.state.phase === 'done' || this.state.phase === 'failed'
  }

  #checkEnd(): void {
    const { config, standalone } = this.state
    const { cells, engines, consumed } = this.#cluster
    if (consumed.size !== config.totalSteps * config.groupsPerStep) throw new WorldError('I9 groups are missing')
    for (const [index, { weights }] of cells.entries()) {
      if (weights !== config.totalSteps) throw new WorldError(`E1 cell ${index} ends with weights ${weights}`)
    }
    for (const [index, { weights }] of engines.entries()) {
      const serves = standalone[index]?.phase === 'serving'
      if (serves && weights !== config.totalSteps) throw new WorldError(`E1 engine ${index} ends with ${weights}`)
    }
  }

  /** True, with a chance of one in `odds`, while this fault is not used up. */
  #strikes(fault: keyof WorldFaults, odds: number): boolean {
    const spent = this.#spent.get(fault) ?? 0
    if (spent >= (this.#options[fault] ?? 0) || this.#rng.below(odds) > 0) return false
    this.#spent.set(fault, spent + 1)
    return true
  }

  /** What happens by itself, between two answers. */
  #interfere(): void {
    const { cells, engines } = this.#cluster
    if (this.#strikes('deaths', 25)) this.#kill(this.#rng.below(cells.length))
    if (engines.length > 0 && this.#strikes('engineDeaths', 40)) this.#killEngine(this.#rng.below(engines.length))
    if (this.#strikes('controlDeaths', 120)) this.#resume()
    if (this.#strikes('stops', 120)) this.#send({ kind: 'stop' })
    if (this.#rng.below(25) === 0) this.#send({ kind: 'load-seen', share: this.#rng.next() * 1.2 })
    if (this.#rng.below(40) === 0) this.#send({ kind: 'tick' })
    if (this.#strikes('echoes', 60)) this.#send({ kind: 'start' })
    const group = this.state.groups[this.#rng.below(this.state.groups.length)]
    const member = group?.members[this.#rng.below(group.members.length)]
    // A harness makes its next model call.
    if (member?.phase === 'running' || member?.phase === 'held') this.#cluster.call(member.executionId)
  }

  #report(event: SchedulerEvent): void {
    if (this.#strikes('echoes', 6)) {
      if (ECHOED_AT_ONCE.has(event.kind)) this.#send(event)
      else this.#later(() => [event])
    }
    this.#send(event)
  }

  #send(event: SchedulerEvent): void {
    const previous = this.state
    // What is shared between states must never be written.
    if (this.#options.throughJson === true) freeze(previous)
    this.#nowMs += this.#rng.below(200)
    const slip = this.#options.clockJumps === true && this.#rng.below(5) === 0 ? this.#rng.below(5000) : 0
    const { state, commands } = this.#advance(previous, event, this.#nowMs - slip)
    this.state =
      this.#options.throughJson === true && this.events % 7 === 0
        ? (JSON.parse(JSON.stringify(state)) as SchedulerState)
        : state
    this.events++
    this.#onEvent(this.state, previous)
    if (event.kind === 'standalone-failed') this.#noteFailure(event, previous)
    const { transfer } = previous
    if (transfer?.phase === 'handing-over' && state.transfer?.id !== transfer.id) this.#cluster.died(transfer.cell)
    for (const command of commands) this.#accept(command)
    // All of them are carried out at once: only the last route of an execution counts.
    const routed = commands.flatMap((c) => (c.kind === 'set-routes' ? c.routes.map((r) => r.executionId) : []))
    this.#cluster.checkRoutes(routed, (destination) => this.#serves(destination))
    if (event.kind === 'cell-failed') this.#cluster.moveRequests('cell', event.cell)
    if (event.kind === 'standalone-failed') this.#cluster.moveRequests('standalone', event.engine)
  }

  /** One random thing that can happen now. */
  #next(): readonly SchedulerEvent[] | undefined {
    const busy = this.#cluster.cells.filter((cell) => cell.inbox.length > 0)
    const choice = this.#tasks.length + busy.length
    if (choice === 0) return undefined
    const pick = this.#rng.below(choice)
    const cell = busy[pick - this.#tasks.length]
    if (cell === undefined) return this.#tasks.splice(pick, 1)[0]?.() ?? []
    const command = cell.inbox.shift()
    const answers = command === undefined ? [] : this.#execute(cell, command)
    if (this.#rng.below(4) > 0) return answers
    // The answer is late: other things happen first.
    this.#later(() => answers)
    return []
  }

  #later(task: Task): void {
    this.#tasks.push(task)
  }

  #accept(command: Command): void {
    this.log.push(command)
    if (this.state.stopping && BEGINNINGS.has(command.kind)) throw new WorldError(`${command.kind} after a stop`)
    switch (command.kind) {
      case 'create-groups':
        this.#later(() => [
          { kind: 'groups-created', groups: Array.from({ length: command.count }, () => this.#group()) },
        ])
        return
      case 'start-execution':
        this.#start(command.executionId)
        return
      case 'cut-execution':
        this.#later(() => this.#endExecution(command.executionId))
        return
      case 'new-attempt':
        this.#later(() => [{ kind: 'attempt-created', executionId: command.executionId, nextId: this.#executionId() }])
        return
      case 'wake':
        this.#later(() => {
          this.#nowMs = Math.max(this.#nowMs, command.atMs)
          return [{ kind: 'tick' }]
        })
        return
      case 'set-routes':
        this.#cluster.setRoutes(command.routes, this.#rng.below(2) === 0)
        return
      case 'hand-over':
        this.#cluster.pin(command)
        this.#later(() => {
          this.#cluster.unpin(command)
          return [{ kind: 'handed-over', transferId: command.transferId }]
        })
        return
      case 'cancel-in-flight':
        this.#later(() => {
          this.#cluster.moveRequests('cell', command.cell)
          return [{ kind: 'cancelled', transferId: command.transferId }]
        })
        return
      case 'build-micro-steps':
        this.#build(command)
        return
      case 'restart-cell':
        this.#later(() => this.#restart(command.cell, command.epoch))
        return
      case 'publish-standalone':
      case 'recover-standalone':
        this.#later(() => this.#askEngine(command))
        return
      case 'enter-training':
        this.#cluster.leaves(command.cell)
        this.#cluster.cells[command.cell]?.inbox.push(command)
        return
      case 'join-step':
      case 'train':
      case 'hold-gradient':
      case 'apply-held':
      case 'publish':
      case 'restore-cell':
        this.#cluster.cells[command.cell]?.inbox.push(command)
        return
      case 'checkpoint':
      case 'reduce':
      case 'optimize':
        this.#cluster.cells[0]?.inbox.push(command)
        return
      case 'step-done':
      case 'steps-undone':
      case 'finish':
        return
      default:
        command satisfies never
    }
  }

  /** Each time into another number of micro-steps, so that the report of an earlier time is wrong. */
  #build(command: Of<'build-micro-steps'>): void {
    const others = this.#rng.below(4)
    // Of some, the advantage has the wrong sign.
    const held = (command.held ?? []).filter(() => this.#rng.below(4) > 0)
    const early = held.map((id, i) => ({ index: others + i, executionId: id }))
    const count = others + early.length
    this.#cluster.cut(command.groupId, count, early)
    const { groupId: of, step, attempt } = command
    this.#later(() => [{ kind: 'micro-steps-built', groupId: of, step, attempt, count, early }])
  }

  #serves({ kind, index }: Destination): boolean {
    return kind === 'cell'
      ? this.state.cells[index]?.phase === 'rollout'
      : this.state.standalone[index]?.phase === 'serving'
  }

  #group(): { groupId: GroupId; executionIds: ExecutionId[] } {
    const id = groupId(`g${++this.#ids}`)
    return { groupId: id, executionIds: Array.from({ length: this.state.config.groupSize }, () => this.#executionId()) }
  }

  #executionId(): ExecutionId {
    return executionId(`e${++this.#ids}`)
  }

  #start(id: ExecutionId): void {
    this.#cluster.begin(id, this.state.phase === 'running' ? this.state.policyVersion : undefined)
    this.#later(() => this.#endExecution(id))
  }

  #endExecution(id: ExecutionId): readonly SchedulerEvent[] {
    if (this.#over.has(id)) return []
    this.#over.add(id)
    this.#cluster.ended(id)
    if (this.#strikes('executionFailures', 8)) {
      // What a lost attempt left behind may still be scored, whatever became of it meanwhile.
      if (this.#rng.below(4) === 0) this.#later(() => [{ kind: 'execution-scored', executionId: id }])
      return [{ kind: 'execution-failed', executionId: id }]
    }
    const isExcluded = this.#strikes('exclusions', 3)
    const verdict: SchedulerEvent = { kind: isExcluded ? 'execution-excluded' : 'execution-scored', executionId: id }
    if (this.#rng.below(4) === 0) return [verdict]
    this.#later(() => [verdict])
    return [{ kind: 'execution-ended', executionId: id }]
  }

  #kill(index: number): void {
    const cell = this.#cluster.cells[index]
    if (cell?.alive !== true) return
    cell.alive = false
    const { generation } = cell
    // The death is noticed some time later, by whoever comes first.
    this.#later(() => {
      if (cell.generation !== generation) return []
      return [{ kind: 'cell-failed', cell: index, epoch: this.state.cells[index]?.epoch ?? 0 }]
    })
  }

  #restart(index: number, epoch: number): readonly SchedulerEvent[] {
    const cell = this.#cluster.cells[index]
    if (cell === undefined || this.#rng.below(8) === 0) return [{ kind: 'restart-failed', cell: index, epoch }]
    // A checkpoint is the one command that is always answered: its outcome decides what a death undoes.
    const unsaved = cell.inbox.filter((c) => c.kind === 'checkpoint')
    Object.assign(cell, { alive: true, weights: undefined, gradient: [], kept: new Map(), inbox: [] })
    cell.generation++
    this.#cluster.died(index)
    return [...unsaved.flatMap((c) => failureOf(c)), { kind: 'cell-restarted', cell: index, epoch }]
  }

  /** What the process does with a command, and what its caller then knows. */
  #execute(cell: Process, command: ProcessCommand): readonly SchedulerEvent[] {
    if (!cell.alive) return failureOf(command)
    if (command.epoch < cell.epoch) return []
    cell.epoch = command.epoch
    const isEarly = command.kind === 'hold-gradient' || command.kind === 'apply-held'
    // There is no room for it, or the scaled gradient leaves the range.
    if (isEarly && this.#rng.below(6) === 0) return this.#cluster.refuse(cell, command)
    const groups = this.state.openStep?.groups.map((g) => g.groupId) ?? []
    const answers = this.#cluster.obey(cell, command, groups)
    // Done, but nobody heard of it in time.
    return command.kind !== 'checkpoint' && this.#strikes('lostAnswers', 20) ? failureOf(command) : answers
  }

  #killEngine(index: number): void {
    const engine = this.#cluster.engines[index]
    if (engine?.alive !== true) return
    engine.alive = false
    this.#later(() =>
      engine.alive
        ? []
        : [{ kind: 'standalone-failed', engine: index, epoch: this.state.standalone[index]?.epoch ?? 0 }],
    )
  }

  #askEngine(command: Of<'publish-standalone' | 'recover-standalone'>): readonly SchedulerEvent[] {
    const engine = this.#cluster.engines[command.engine]
    if (engine === undefined || command.epoch < engine.epoch) return []
    engine.epoch = command.epoch
    if (command.kind === 'publish-standalone') {
      if (!engine.alive || this.#strikes('engineDeaths', 10)) return [{ ...command, kind: 'standalone-failed' }]
      engine.weights = command.version
      return [{ ...command, kind: 'standalone-published' }]
    }
    if (this.#options.enginesReturn === false) return []
    if (this.#rng.below(3) === 0) {
      // Asked again until it answers.
      this.#later(() => this.#askEngine(command))
      return []
    }
    Object.assign(engine, { alive: true, isOut: false, weights: command.version })
    return [{ ...command, kind: 'standalone-recovered' }]
  }

  /** A new control process goes on from what is durable; whatever was under way is gone. */
  #resume(): void {
    const { config, groups, cells, standalone, burst } = this.state
    this.#tasks.length = 0
    this.#cluster.startOver()
    const open = groups.filter((g) => !this.#cluster.consumed.has(g.groupId))
    this.state = resumedState(config, {
      step: this.#cluster.checkpoint,
      bursts: burst.id + 1,
      groups: open.map((g): ResumedGroup => ({ ...g, members: g.members.map((m) => this.#resumed(m)) })),
      firstEpoch: 1 + Math.max(...[...cells, ...standalone].map((slot) => slot.epoch)),
    })
    this.#send({ kind: 'start' })
  }

  #resumed({ executionId: id, attempt, phase }: ExecutionSlot): ResumedGroup['members'][number] {
    if (phase === 'scored' || phase === 'excluded' || phase === 'queued') return { executionId: id, attempt, phase }
    return { executionId: this.#executionId(), attempt: attempt + 1, phase: 'queued' }
  }
}

function freeze(value: unknown): void {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return
  Object.freeze(value)
  for (const part of Object.values(value)) freeze(part)
}
