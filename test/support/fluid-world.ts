/**
 * @file A cluster without faults on virtual time: executions and micro-steps take as long as they are told to, so that
 * a test can see what a lever of the scheduler does to the length of a burst.
 */
import { executionId, groupId } from '../../src/core/ids.ts'
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import { hashSeed, seededRng } from '../../src/core/rng.ts'
import { advance } from '../../src/scheduler/advance.ts'
import { checkInvariants } from '../../src/scheduler/invariants.ts'
import { initialState } from '../../src/scheduler/state.ts'
import type { Command, SchedulerEvent } from '../../src/scheduler/messages.ts'
import type { SchedulerConfig, SchedulerState } from '../../src/scheduler/types.ts'

export interface Workload {
  /** How long a member of the n-th group runs. [ms] */
  readonly executionMs: (group: number, member: number) => number
  /** A group is two micro-steps of this length; each of its executions is an equal part of both. [ms] */
  readonly microStepMs: number
  /** The gradient of one execution alone takes so many times its part of the group: it does not share prefixes. Default 1. */
  readonly aloneFactor?: number
  /** A change of role. [ms] */
  readonly moveMs: number
  /** Share of its time that an execution generates; the rest it waits for tools. */
  readonly generating: number
}

export interface FluidRun {
  /** Boundary to boundary. [ms] */
  readonly bursts: readonly number[]
  readonly totalMs: number
  /** phi of each burst. [steps] */
  readonly carryOvers: readonly number[]
  readonly staleness: readonly { readonly mean: number; readonly max: number }[]
  readonly moves: number
  /** Gradients computed before their group was complete, and those of them that were used. */
  readonly early: number
  readonly applied: number
  readonly cuts: number
  /** Executions that ended before their time. */
  readonly shortened: number
  readonly mostRunning: number
  readonly log: readonly Command[]
  readonly state: SchedulerState
}

interface Due {
  readonly atMs: number
  readonly order: number
  readonly events: () => readonly SchedulerEvent[]
}

const SOON_MS = 1
const LOAD_EVERY_MS = 100

/** @throws Error on a broken invariant, a deadlock, or no end. */
export function runFluid(config: SchedulerConfig, workload: Workload, throughJson = false): FluidRun {
  const world = new FluidWorld(config, workload, throughJson)
  return world.run()
}

class FluidWorld {
  readonly #config: SchedulerConfig
  readonly #workload: Workload
  readonly #throughJson: boolean
  #state: SchedulerState
  #nowMs = 0
  #order = 0
  #groups = 0
  readonly #due: Due[] = []
  /** Executions and when they end, unless they are cut. */
  readonly #durations = new Map<ExecutionId, number>()
  readonly #running = new Set<ExecutionId>()
  /** Part of each group that was not computed early. */
  readonly #shares = new Map<GroupId, number>()
  readonly #log: Command[] = []
  readonly #boundaries: number[] = []
  readonly #carryOvers: number[] = []
  #shortened = 0
  #mostRunning = 0

  constructor(config: SchedulerConfig, workload: Workload, throughJson: boolean) {
    this.#config = config
    this.#workload = workload
    this.#throughJson = throughJson
    this.#state = initialState(config)
  }

  run(): FluidRun {
    this.#send({ kind: 'start' })
    if (this.#config.overCommit > 1) this.#reportLoad()
    for (let events = 0; this.#state.phase !== 'done'; events++) {
      const next = this.#due.shift()
      if (next === undefined || events > 200_000) throw new Error(`no end in phase ${this.#state.phase}`)
      this.#nowMs = next.atMs
      for (const event of next.events()) this.#send(event)
    }
    const ends = [...this.#boundaries.slice(1), this.#nowMs]
    const staleness = this.#log.flatMap((c) => (c.kind === 'step-done' ? [c.staleness] : []))
    return {
      bursts: ends.map((end, i) => end - (this.#boundaries[i] ?? 0)),
      totalMs: this.#nowMs,
      carryOvers: this.#carryOvers,
      staleness,
      early: this.#log.filter((c) => c.kind === 'hold-gradient').length,
      applied: this.#log.filter((c) => c.kind === 'apply-held').length,
      moves: this.#log.filter((c) => c.kind === 'enter-training').length,
      cuts: this.#state.cutExecutions,
      shortened: this.#shortened,
      mostRunning: this.#mostRunning,
      log: this.#log,
      state: this.#state,
    }
  }

  #after(delayMs: number, events: () => readonly SchedulerEvent[]): void {
    const due = { atMs: this.#nowMs + delayMs, order: this.#order++, events }
    const at = this.#due.findLastIndex((d) => d.atMs <= due.atMs)
    this.#due.splice(at + 1, 0, due)
  }

  #send(event: SchedulerEvent): void {
    const previous = this.#state
    const { state, commands } = advance(previous, event, this.#nowMs)
    this.#state = this.#throughJson ? (JSON.parse(JSON.stringify(state)) as SchedulerState) : state
    const broken = checkInvariants(this.#state, previous)
    if (broken.length > 0) throw new Error(`after ${event.kind}: ${broken.join(', ')}`)
    if (state.burst.id !== previous.burst.id) {
      this.#boundaries.push(this.#nowMs)
      this.#carryOvers.push(state.carryOver)
    }
    for (const command of commands) this.#obey(command)
  }

  #obey(command: Command): void {
    this.#log.push(command)
    const { moveMs, microStepMs } = this.#workload
    switch (command.kind) {
      case 'create-groups':
        this.#after(SOON_MS, () => [
          { kind: 'groups-created', groups: Array.from({ length: command.count }, () => this.#group()) },
        ])
        return
      case 'start-execution': {
        const { executionId: id } = command
        this.#running.add(id)
        this.#mostRunning = Math.max(this.#mostRunning, this.#running.size)
        this.#after(this.#durations.get(id) ?? 0, () => this.#end(id))
        return
      }
      case 'cut-execution':
        if (this.#running.has(command.executionId)) this.#shortened++
        this.#after(SOON_MS, () => this.#end(command.executionId))
        return
      case 'wake':
        this.#after(Math.max(0, command.atMs - this.#nowMs), () => [{ kind: 'tick' }])
        return
      case 'hand-over':
        this.#after(SOON_MS, () => [{ kind: 'handed-over', transferId: command.transferId }])
        return
      case 'cancel-in-flight':
        this.#after(SOON_MS, () => [{ kind: 'cancelled', transferId: command.transferId }])
        return
      case 'enter-training':
        this.#after(moveMs, () => [{ ...command, kind: 'entered-training' }])
        return
      case 'build-micro-steps':
        this.#after(SOON_MS, () => [this.#cut(command)])
        return
      case 'hold-gradient': {
        const { groupSize } = this.#config
        const alone = ((2 * microStepMs) / groupSize) * (this.#workload.aloneFactor ?? 1)
        this.#after(alone, () => [{ ...command, kind: 'gradient-held', key: command.early.key }])
        return
      }
      case 'apply-held':
        this.#after(SOON_MS, () => [{ ...command, kind: 'micro-step-done', key: command.claim.key }])
        return
      case 'join-step':
        this.#after(SOON_MS, () => [{ ...command, kind: 'joined' }])
        return
      case 'train':
        this.#after(microStepMs * (this.#shares.get(command.claim.groupId) ?? 1), () => [
          { ...command, kind: 'micro-step-done', key: command.claim.key },
        ])
        return
      case 'reduce':
        this.#after(SOON_MS, () => [{ ...command, kind: 'reduced' }])
        return
      case 'optimize':
        this.#after(SOON_MS, () => [{ ...command, kind: 'optimized' }])
        return
      case 'checkpoint':
        this.#after(SOON_MS, () => [{ ...command, kind: 'checkpointed' }])
        return
      case 'publish':
        this.#after(moveMs, () => [{ ...command, kind: 'published' }])
        return
      case 'finish':
        if (command.outcome === 'failed') throw new Error(command.reason)
        return
      case 'set-routes':
      case 'step-done':
        return
      case 'new-attempt':
      case 'publish-standalone':
      case 'recover-standalone':
      case 'restart-cell':
      case 'restore-cell':
      case 'steps-undone':
        throw new Error(`a cluster without faults is asked to ${command.kind}`)
      default:
        command satisfies never
    }
  }

  /** What is held is beside the two micro-steps of the rest. */
  #cut(command: Extract<Command, { readonly kind: 'build-micro-steps' }>): SchedulerEvent {
    const { groupId: id, step, attempt, held = [] } = command
    this.#shares.set(id, 1 - held.length / this.#config.groupSize)
    const early = held.map((execution, i) => ({ index: 2 + i, executionId: execution }))
    return { kind: 'micro-steps-built', groupId: id, step, attempt, count: 2 + held.length, early }
  }

  #group(): { readonly groupId: GroupId; readonly executionIds: readonly ExecutionId[] } {
    const group = this.#groups++
    const executionIds = Array.from({ length: this.#config.groupSize }, (_, member) => {
      const id = executionId(`e${group}.${member}`)
      this.#durations.set(id, this.#workload.executionMs(group, member))
      return id
    })
    return { groupId: groupId(`g${group}`), executionIds }
  }

  #end(id: ExecutionId): readonly SchedulerEvent[] {
    if (!this.#running.delete(id)) return []
    return [
      { kind: 'execution-ended', executionId: id },
      { kind: 'execution-scored', executionId: id },
    ]
  }

  #reportLoad(): void {
    this.#after(LOAD_EVERY_MS, () => {
      this.#reportLoad()
      const slots = this.#state.cells.filter((cell) => cell.phase === 'rollout').length * this.#config.cellSlots
      const share = slots === 0 ? 0 : (this.#running.size * this.#workload.generating) / slots
      return [{ kind: 'load-seen', share }]
    })
  }
}

/** Log-normal: most near the median, a few several times as long; no longer than `limitMs`. */
export function longTailed(seed: number, medianMs: number, sigma: number, limitMs: number): Workload['executionMs'] {
  return (group, member) => {
    const rng = seededRng(hashSeed(seed, group, member))
    const normal = Math.sqrt(-2 * Math.log(1 - rng.next())) * Math.cos(2 * Math.PI * rng.next())
    return Math.round(Math.min(limitMs, medianMs * Math.exp(sigma * normal)))
  }
}
