/**
 * @file A small deterministic cluster for the scheduler's property tests: it answers commands in random order, kills
 * cells, loses gradients and checks, on its own books, that every group is trained exactly once by the right weights.
 */
import { executionId, groupId } from '../../src/core/ids.ts'
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import type { Rng } from '../../src/core/rng.ts'
import type { Advanced, Command, SchedulerEvent, SchedulerState } from '../../src/scheduler/types.ts'

export interface WorldOptions {
  readonly seed: number
  /** Cell deaths to inject, at random moments. */
  readonly deaths: number
  /** Executions to exclude, and to fail once, at most. */
  readonly exclusions: number
  readonly executionFailures: number
  /** Pushes the state through JSON now and then. */
  readonly throughJson: boolean
}

interface Process {
  alive: boolean
  /** Number of starts, so that a late notice of an earlier death is told apart. */
  generation: number
  epoch: number
  /** Optimizer steps in its weights; undefined in a fresh process. */
  weights: number | undefined
  gradient: string[]
  /** Commands in the order they were made. */
  readonly inbox: ProcessCommand[]
}

type CellCommand = Extract<
  Command,
  { readonly kind: 'enter-training' | 'join-step' | 'train' | 'publish' | 'restore-cell' }
>
type ProcessCommand = CellCommand | Extract<Command, { readonly kind: 'reduce' | 'optimize' | 'checkpoint' }>
type Task = () => readonly SchedulerEvent[]
export type Advance = (state: SchedulerState, event: SchedulerEvent, atMs: number) => Advanced

/** A broken promise seen from outside the scheduler. */
export class WorldError extends Error {}

export class TestWorld {
  state: SchedulerState
  /** What happened, for tests that look at a history. */
  readonly log: Command[] = []
  events = 0
  readonly #advance: Advance
  readonly #options: WorldOptions
  readonly #rng: Rng
  readonly #cells: Process[]
  readonly #tasks: Task[] = []
  readonly #microSteps = new Map<GroupId, number>()
  readonly #consumed = new Set<GroupId>()
  readonly #onEvent: (state: SchedulerState, previous: SchedulerState) => void
  #checkpoint: number
  #deaths: number
  #exclusions: number
  #failures: number
  #ids = 0

  constructor(
    initial: SchedulerState,
    options: WorldOptions,
    advance: Advance,
    onEvent: (state: SchedulerState, previous: SchedulerState) => void,
  ) {
    this.state = initial
    this.#advance = advance
    this.#options = options
    this.#onEvent = onEvent
    this.#rng = seededRng(options.seed)
    this.#checkpoint = initial.step
    this.#deaths = options.deaths
    this.#exclusions = options.exclusions
    this.#failures = options.executionFailures
    this.#cells = initial.cells.map(() => ({
      alive: true,
      generation: 0,
      epoch: 0,
      weights: initial.step,
      gradient: [],
      inbox: [],
    }))
    for (const group of initial.groups) this.#microSteps.set(group.groupId, 2)
  }

  /** Runs until the scheduler finishes. @throws WorldError on a deadlock or a broken promise. */
  run(limit = 20_000): void {
    this.#send({ kind: 'start' })
    while (this.state.phase !== 'done' && this.state.phase !== 'failed') {
      if (this.events > limit) throw new WorldError(`no end after ${limit} events`)
      if (this.#deaths > 0 && this.#rng.below(25) === 0) this.#kill(this.#rng.below(this.#cells.length))
      const answers = this.#next()
      if (answers === undefined) throw new WorldError(`deadlock in phase ${this.state.phase}`)
      for (const answer of answers) this.#send(answer)
    }
    if (this.state.phase === 'done') this.#checkEnd()
  }

  #checkEnd(): void {
    const { config } = this.state
    if (this.#consumed.size !== config.totalSteps * config.groupsPerStep) throw new WorldError('groups are missing')
    for (const [index, cell] of this.#cells.entries()) {
      if (cell.weights !== config.totalSteps) throw new WorldError(`cell ${index} ends with weights ${cell.weights}`)
    }
  }

  #send(event: SchedulerEvent): void {
    const previous = this.state
    const { state, commands } = this.#advance(previous, event, this.events)
    this.state =
      this.#options.throughJson && this.events % 7 === 0 ? (JSON.parse(JSON.stringify(state)) as SchedulerState) : state
    this.events++
    this.#onEvent(this.state, previous)
    for (const command of commands) this.#accept(command)
  }

  /** One random thing that can happen now. */
  #next(): readonly SchedulerEvent[] | undefined {
    const busy = this.#cells.filter((cell) => cell.inbox.length > 0)
    const choice = this.#tasks.length + busy.length
    if (choice === 0) return undefined
    const pick = this.#rng.below(choice)
    if (pick < this.#tasks.length) {
      const [task] = this.#tasks.splice(pick, 1)
      return task?.() ?? []
    }
    const cell = busy[pick - this.#tasks.length] as Process
    return this.#execute(cell, cell.inbox.shift() as ProcessCommand)
  }

  #later(task: Task): void {
    this.#tasks.push(task)
  }

  #accept(command: Command): void {
    this.log.push(command)
    switch (command.kind) {
      case 'create-groups':
        this.#later(() => [
          { kind: 'groups-created', groups: Array.from({ length: command.count }, () => this.#group()) },
        ])
        return
      case 'start-execution':
        this.#later(() => this.#endExecution(command.executionId))
        return
      case 'new-attempt':
        this.#later(() => [{ kind: 'attempt-created', executionId: command.executionId, nextId: this.#executionId() }])
        return
      case 'cancel-in-flight':
        this.#later(() => [{ kind: 'cancelled', transferId: command.transferId }])
        return
      case 'hand-over':
        this.#later(() => [{ kind: 'handed-over', transferId: command.transferId }])
        return
      case 'publish-standalone':
        this.#later(() => [{ ...command, kind: 'standalone-published' }])
        return
      case 'recover-standalone':
        this.#later(() => [{ ...command, kind: 'standalone-recovered' }])
        return
      case 'build-micro-steps':
        this.#later(() => [
          { ...command, kind: 'micro-steps-built', count: this.#microSteps.get(command.groupId) ?? 0 },
        ])
        return
      case 'restart-cell':
        this.#later(() => this.#restart(command.cell, command.epoch))
        return
      case 'checkpoint':
      case 'reduce':
      case 'optimize':
        this.#cells[0]?.inbox.push(command)
        return
      case 'enter-training':
      case 'join-step':
      case 'train':
      case 'publish':
      case 'restore-cell':
        this.#cells[command.cell]?.inbox.push(command)
        return
      case 'cut-execution':
      case 'wake':
      case 'set-routes':
      case 'step-done':
      case 'steps-undone':
      case 'finish':
        return
      default:
        command satisfies never
    }
  }

  #group(): { groupId: GroupId; executionIds: ExecutionId[] } {
    const id = groupId(`g${++this.#ids}`)
    this.#microSteps.set(id, this.#rng.below(4))
    return { groupId: id, executionIds: Array.from({ length: this.state.config.groupSize }, () => this.#executionId()) }
  }

  #executionId(): ExecutionId {
    return executionId(`e${++this.#ids}`)
  }

  #endExecution(id: ExecutionId): readonly SchedulerEvent[] {
    const chance = this.#rng.below(8)
    if (chance === 0 && this.#failures > 0) {
      this.#failures--
      return [{ kind: 'execution-failed', executionId: id }]
    }
    const isExcluded = chance <= 3 && this.#exclusions > 0
    if (isExcluded) this.#exclusions--
    const verdict: SchedulerEvent = { kind: isExcluded ? 'execution-excluded' : 'execution-scored', executionId: id }
    if (this.#rng.below(4) === 0) return [verdict]
    this.#later(() => [verdict])
    return [{ kind: 'execution-ended', executionId: id }]
  }

  #kill(index: number): void {
    const cell = this.#cells[index] as Process
    if (!cell.alive) return
    this.#deaths--
    cell.alive = false
    const { generation } = cell
    // The death is noticed some time later, by whoever comes first.
    this.#later(() => {
      if (cell.generation !== generation) return []
      return [{ kind: 'cell-failed', cell: index, epoch: this.state.cells[index]?.epoch ?? 0 }]
    })
  }

  #restart(index: number, epoch: number): readonly SchedulerEvent[] {
    const cell = this.#cells[index] as Process
    if (this.#rng.below(8) === 0) return [{ kind: 'restart-failed', cell: index, epoch }]
    cell.alive = true
    cell.generation++
    cell.weights = undefined
    cell.gradient = []
    // A checkpoint is the one command that is always answered: its outcome decides what a death undoes.
    const unsaved = cell.inbox.flatMap((c) => (c.kind === 'checkpoint' ? this.#unreachable(c) : []))
    cell.inbox.length = 0
    return [...unsaved, { kind: 'cell-restarted', cell: index, epoch }]
  }

  /** What the process does with a command, and what its caller then knows. */
  #execute(cell: Process, command: ProcessCommand): readonly SchedulerEvent[] {
    if (!cell.alive) return this.#unreachable(command)
    if (command.epoch < cell.epoch) return []
    cell.epoch = command.epoch
    switch (command.kind) {
      case 'reduce':
        return this.#reduce(cell, command)
      case 'optimize':
        return this.#optimize(cell, command)
      case 'checkpoint':
        return this.#save(command)
      case 'enter-training':
      case 'join-step':
      case 'train':
      case 'publish':
      case 'restore-cell':
        return this.#obey(cell, command)
      default:
        command satisfies never
        return []
    }
  }

  #unreachable(command: ProcessCommand): readonly SchedulerEvent[] {
    if (command.kind === 'checkpoint') return [{ kind: 'checkpoint-failed', step: command.step }]
    const index = 'cell' in command ? command.cell : 0
    return this.#rng.below(2) === 0 ? [] : [{ kind: 'cell-failed', cell: index, epoch: command.epoch }]
  }

  #obey(cell: Process, command: CellCommand): readonly SchedulerEvent[] {
    const core = this.#cells[0] as Process
    const who = { cell: command.cell, epoch: command.epoch }
    switch (command.kind) {
      case 'enter-training':
        return [{ kind: 'entered-training', ...who }]
      case 'join-step':
        if (!core.alive || core.weights === undefined) return [{ kind: 'join-failed', ...who, step: command.step }]
        cell.weights = core.weights
        cell.gradient = []
        return [{ kind: 'joined', ...who, step: command.step }]
      case 'train':
        if (cell.weights !== command.step) throw new WorldError(`trained step ${command.step} on ${cell.weights}`)
        cell.gradient.push(`${command.claim.groupId}/${command.claim.index}`)
        return [{ kind: 'micro-step-done', ...who, key: command.claim.key }]
      case 'publish':
        cell.weights = core.alive && core.weights !== undefined ? core.weights : this.#checkpoint
        if (cell.weights !== command.version) throw new WorldError(`published ${cell.weights} as ${command.version}`)
        return [{ kind: 'published', ...who, version: command.version }]
      case 'restore-cell':
        cell.weights = command.version
        return [{ kind: 'cell-restored', ...who, version: command.version }]
      default:
        command satisfies never
        return []
    }
  }

  #reduce(core: Process, command: Extract<Command, { readonly kind: 'reduce' }>): readonly SchedulerEvent[] {
    for (const index of command.from) {
      const member = this.#cells[index] as Process
      if (!member.alive || member.gradient.length === 0) return [{ kind: 'reduce-failed', epoch: command.epoch }]
      core.gradient.push(...member.gradient)
    }
    return [{ kind: 'reduced', epoch: command.epoch }]
  }

  #optimize(core: Process, command: Extract<Command, { readonly kind: 'optimize' }>): readonly SchedulerEvent[] {
    const step = this.state.openStep
    const expected = (step?.groups ?? []).flatMap((g) =>
      Array.from({ length: this.#microSteps.get(g.groupId) ?? 0 }, (_, i) => `${g.groupId}/${i}`),
    )
    if (core.gradient.toSorted().join() !== expected.toSorted().join())
      throw new WorldError('the gradient is not the step')
    core.gradient = []
    core.weights = command.step + 1
    return [{ kind: 'optimized', epoch: command.epoch }]
  }

  #save(command: Extract<Command, { readonly kind: 'checkpoint' }>): readonly SchedulerEvent[] {
    for (const id of command.groups) {
      if (this.#consumed.has(id)) throw new WorldError(`${id} is consumed twice`)
      this.#consumed.add(id)
    }
    this.#checkpoint = command.step
    return [{ kind: 'checkpointed', step: command.step }]
  }
}
