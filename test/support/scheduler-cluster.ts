/**
 * @file The processes of the scheduler's test world: cells with weights and gradients, engines beside them, and the
 * requests that run on both. They keep books of their own and throw when a promise is broken that the scheduler's
 * state alone does not show: wrong weights, a gradient that is not the step, a request left behind by a move.
 */
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import type { Command, ScheduledRoute, SchedulerEvent } from '../../src/scheduler/messages.ts'
import type { Destination, EarlyMicroStep } from '../../src/scheduler/types.ts'

/** A broken promise seen from outside the scheduler. */
export class WorldError extends Error {}

export type Of<K extends Command['kind']> = Extract<Command, { readonly kind: K }>
type EarlyCommand = Of<'hold-gradient' | 'apply-held'>
type CellCommand = Of<'enter-training' | 'join-step' | 'train' | 'publish' | 'restore-cell'> | EarlyCommand
export type ProcessCommand = CellCommand | Of<'reduce' | 'optimize' | 'checkpoint'>

export interface Process {
  alive: boolean
  /** Number of starts, so that a late notice of an earlier death is told apart. */
  generation: number
  epoch: number
  /** Optimizer steps in its weights; undefined in a fresh process. */
  weights: number | undefined
  gradient: string[]
  /** Gradients kept aside, and of which execution each is. */
  kept: Map<string, ExecutionId>
  /** Commands in the order they were made. */
  inbox: ProcessCommand[]
}

interface BesideEngine {
  alive: boolean
  /** The scheduler was told that it failed, and it has not come back. */
  isOut: boolean
  epoch: number
  weights: number
}

export class TestCluster {
  readonly cells: readonly Process[]
  readonly engines: readonly BesideEngine[]
  /** Of the last durable checkpoint. */
  checkpoint: number
  readonly consumed = new Set<GroupId>()
  readonly #microSteps = new Map<GroupId, number>()
  /** Which execution a micro-step holds, where it holds one that was kept early. */
  readonly #early = new Map<string, ExecutionId>()
  readonly #routes = new Map<ExecutionId, ScheduledRoute>()
  /** Where a model call of each execution runs now. */
  readonly #requests = new Map<ExecutionId, Destination>()
  /** Cells whose blocks are being fetched by others. */
  readonly #pinned = new Map<number, number>()

  constructor(cells: number, engines: number, step: number) {
    this.checkpoint = step
    this.cells = Array.from({ length: cells }, () => ({
      alive: true,
      generation: 0,
      epoch: 0,
      weights: step,
      gradient: [],
      kept: new Map(),
      inbox: [],
    }))
    this.engines = Array.from({ length: engines }, () => ({ alive: true, isOut: false, epoch: 0, weights: step }))
  }

  /** Every process as a new control process finds it: alive, with the weights of the checkpoint, nothing running. */
  startOver(): void {
    for (const cell of this.cells) {
      Object.assign(cell, { alive: true, weights: this.checkpoint, gradient: [], kept: new Map(), inbox: [] })
      cell.generation++
    }
    for (const engine of this.engines) Object.assign(engine, { alive: true, isOut: false, weights: this.checkpoint })
    this.#routes.clear()
    this.#requests.clear()
    this.#pinned.clear()
  }

  cut(id: GroupId, microSteps: number, early: readonly EarlyMicroStep[]): void {
    this.#microSteps.set(id, microSteps)
    for (const { index, executionId } of early) this.#early.set(`${id}/${index}`, executionId)
  }

  microStepsOf(id: GroupId): number {
    return this.#microSteps.get(id) ?? 2
  }

  /** @param moves some model calls end just now, and the next ones follow the new routes; else all go on where they are. */
  setRoutes(routes: readonly ScheduledRoute[], moves: boolean): void {
    for (const route of routes) {
      const { executionId, routeEpoch } = route
      const before = this.#routes.get(executionId)
      if (before !== undefined && routeEpoch <= before.routeEpoch)
        throw new WorldError('I4 a route without a new epoch')
      this.#routes.set(executionId, route)
      if (moves) this.call(executionId)
    }
  }

  /** @param serves whether a destination serves, by what the scheduler knows now. */
  checkRoutes(executionIds: readonly ExecutionId[], serves: (destination: Destination) => boolean): void {
    for (const executionId of executionIds) {
      const destination = this.#routes.get(executionId)?.destination
      if (destination === undefined) continue
      if (!serves(destination)) throw new WorldError('I10 a route to what does not serve')
      const isOut = destination.kind === 'standalone' && this.engines[destination.index]?.isOut === true
      if (isOut) throw new WorldError('I10 a route to an engine that has not come back')
    }
  }

  /** @param version that its destination must serve, where that is certain. */
  begin(executionId: ExecutionId, version: number | undefined): void {
    const destination = this.#routes.get(executionId)?.destination
    const at = destination === undefined ? undefined : this.#at(destination)
    if (at?.alive === true && version !== undefined && at.weights !== version) {
      throw new WorldError(`E1 an execution of version ${version} begins on weights ${at.weights}`)
    }
    this.call(executionId)
  }

  #at({ kind, index }: Destination): { readonly alive: boolean; readonly weights: number | undefined } | undefined {
    return kind === 'cell' ? this.cells[index] : this.engines[index]
  }

  /** A model call begins where the route points; a held one waits in the gateway. */
  call(executionId: ExecutionId): void {
    const destination = this.#routes.get(executionId)?.destination
    if (destination === undefined) this.#requests.delete(executionId)
    else this.#requests.set(executionId, destination)
  }

  ended(executionId: ExecutionId): void {
    this.#requests.delete(executionId)
    this.#routes.delete(executionId)
  }

  /** What ran there goes on where the routes point now. */
  moveRequests(kind: Destination['kind'], index: number): void {
    for (const [executionId, at] of this.#requests) if (at.kind === kind && at.index === index) this.call(executionId)
  }

  pin(command: Of<'hand-over'>): void {
    this.#pinned.set(command.cell, command.transferId)
  }

  /** The source may free its blocks: every destination has them, or gave up. */
  unpin(command: Of<'hand-over'>): void {
    if (this.#pinned.get(command.cell) === command.transferId) this.#pinned.delete(command.cell)
  }

  /** The books of a move, at the moment the cell is told to change its role. */
  leaves(cell: number): void {
    if (this.#pinned.has(cell)) throw new WorldError(`I5 cell ${cell} is told to train while others fetch from it`)
    for (const at of this.#requests.values()) {
      if (at.kind === 'cell' && at.index === cell && this.cells[cell]?.alive === true) {
        throw new WorldError(`I10 cell ${cell} is told to train with a request in flight`)
      }
    }
  }

  died(cell: number): void {
    this.#pinned.delete(cell)
  }

  /** What a living process does with a command it accepts, and what it answers. */
  obey(cell: Process, command: ProcessCommand, expected: readonly GroupId[]): readonly SchedulerEvent[] {
    switch (command.kind) {
      case 'reduce':
        return this.#reduce(cell, command)
      case 'optimize':
        return this.#optimize(cell, command, expected)
      case 'checkpoint':
        return this.#save(cell, command)
      case 'enter-training':
        return [{ ...command, kind: 'entered-training' }]
      case 'join-step':
        return this.#join(cell, command)
      case 'train':
        if (cell.weights !== command.step) throw new WorldError(`I6 trained step ${command.step} on ${cell.weights}`)
        cell.gradient.push(`${command.claim.groupId}/${command.claim.index}`)
        return [{ ...command, kind: 'micro-step-done', key: command.claim.key }]
      case 'hold-gradient':
        if (cell.weights !== command.step) throw new WorldError(`I6 step ${command.step} held on ${cell.weights}`)
        cell.kept.set(command.early.key, command.early.executionId)
        return [{ ...command, kind: 'gradient-held', key: command.early.key }]
      case 'apply-held':
        return this.#apply(cell, command)
      case 'publish':
        return this.#publish(cell, command)
      case 'restore-cell':
        cell.kept.clear()
        cell.weights = command.version
        return [{ ...command, kind: 'cell-restored' }]
      default:
        command satisfies never
        return []
    }
  }

  /** A living process keeps nothing under this name, and says so. */
  refuse(cell: Process, command: EarlyCommand): readonly SchedulerEvent[] {
    if (command.kind === 'hold-gradient') return [{ ...command, kind: 'gradient-refused', key: command.early.key }]
    this.#take(cell, command)
    return [{ ...command, kind: 'gradient-refused', key: command.claim.key }]
  }

  #apply(cell: Process, command: Of<'apply-held'>): readonly SchedulerEvent[] {
    const { groupId, index, key } = command.claim
    const name = `${groupId}/${index}`
    if (this.#take(cell, command) !== this.#early.get(name))
      throw new WorldError(`I7 ${name} is given another gradient`)
    cell.gradient.push(name)
    return [{ ...command, kind: 'micro-step-done', key }]
  }

  #take(cell: Process, { claim }: Of<'apply-held'>): ExecutionId {
    const executionId = cell.kept.get(claim.held)
    if (executionId === undefined) throw new WorldError('I7 a gradient is applied that the cell does not keep')
    cell.kept.delete(claim.held)
    return executionId
  }

  #join(cell: Process, command: Of<'join-step'>): readonly SchedulerEvent[] {
    const core = this.cells[0]
    if (core?.alive !== true || core.weights === undefined) return [{ ...command, kind: 'join-failed' }]
    cell.weights = core.weights
    cell.gradient = []
    cell.kept.clear()
    return [{ ...command, kind: 'joined' }]
  }

  #publish(cell: Process, command: Of<'publish'>): readonly SchedulerEvent[] {
    const core = this.cells[0]
    cell.kept.clear()
    cell.weights = core?.alive === true && core.weights !== undefined ? core.weights : this.checkpoint
    if (cell.weights !== command.version) throw new WorldError(`E1 published ${cell.weights} as ${command.version}`)
    return [{ ...command, kind: 'published' }]
  }

  #reduce(core: Process, command: Of<'reduce'>): readonly SchedulerEvent[] {
    for (const index of command.from) {
      const member = this.cells[index]
      if (member?.alive !== true || member.gradient.length === 0) return [{ ...command, kind: 'reduce-failed' }]
      core.gradient.push(...member.gradient)
    }
    return [{ ...command, kind: 'reduced' }]
  }

  #optimize(core: Process, command: Of<'optimize'>, groups: readonly GroupId[]): readonly SchedulerEvent[] {
    const expected = groups.flatMap((id) => Array.from({ length: this.microStepsOf(id) }, (_, i) => `${id}/${i}`))
    if (core.gradient.toSorted().join() !== expected.toSorted().join()) {
      throw new WorldError('I7 the gradient is not the step')
    }
    core.gradient = []
    core.kept.clear()
    core.weights = command.step + 1
    return [{ ...command, kind: 'optimized' }]
  }

  #save(core: Process, command: Of<'checkpoint'>): readonly SchedulerEvent[] {
    if (core.weights !== command.step)
      throw new WorldError(`I6 step ${command.step} saved with weights ${core.weights}`)
    for (const id of command.groups) {
      if (this.consumed.has(id)) throw new WorldError('I9 a group is consumed twice')
      this.consumed.add(id)
    }
    this.checkpoint = command.step
    return [{ kind: 'checkpointed', step: command.step }]
  }
}

/** Its caller gave up on the process. */
export function failureOf(command: ProcessCommand): readonly SchedulerEvent[] {
  if (command.kind === 'checkpoint') return [{ kind: 'checkpoint-failed', step: command.step }]
  return [{ kind: 'cell-failed', cell: 'cell' in command ? command.cell : 0, epoch: command.epoch }]
}
