/** @file A cell and its supervisor as one control process sees them: the far end of a virtual socket. */
import { Deadline } from '../../src/cell/deadline.ts'
import { fromWireError, toWireError } from '../../src/cell/wire-errors.ts'
import { GyreError, hasCode } from '../../src/core/errors.ts'
import { cellId, engineId } from '../../src/core/ids.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import type { Cell, CellHealth, CellHello, CellSupervisor, FetchedKv, PinnedKv } from '../../src/ports/cell.ts'
import type { GenerateEvent, GenerateRequest, PublishedWeights, StandaloneEngine } from '../../src/ports/engine.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../src/training/batch.ts'
import type { CellProcess, Machine, Surroundings } from './machines.ts'
import { unreachable } from './machines.ts'
import type { Verb } from './plan.ts'
import type { Domain } from './virtual-time.ts'

/** Silence of a stream after which its cell counts as lost. [ms] */
const SILENCE_MS = 2500
/** What a cell itself allows a verb. [ms] */
const VERB_MS = 60_000

export class SimCell implements Cell {
  readonly cellId
  readonly id
  readonly address: string
  readonly machine: Machine
  protected readonly owner: Domain
  readonly #around: Surroundings
  /** Highest epoch this side has used; generations carry it. */
  #epoch = 0

  constructor(machine: Machine, owner: Domain, around: Surroundings) {
    this.machine = machine
    this.cellId = cellId(machine.name)
    this.id = engineId(machine.name)
    this.address = machine.address
    this.owner = owner
    this.#around = around
  }

  hello(): Promise<CellHello> {
    return this.machine.ask(this.owner, 'hello', async ({ host }) => host.hello())
  }

  async health(deadlineMs: number): Promise<CellHealth> {
    const asking = this.machine.ask(this.owner, 'health', async ({ host }) => host.health())
    return new Deadline('health', deadlineMs).wait(asking)
  }

  async *generate(request: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void, undefined> {
    const { process } = this.machine
    if (process === undefined) throw lost(`${this.id} is down`)
    const inbox = new Inbox()
    const leave = new AbortController()
    const onAbort = (): void => inbox.put(engineError('E_ENGINE_CANCELLED', 'the caller went away'))
    const onSilence = (): void => inbox.put(lost(`${this.id} is silent`))
    this.#serve(process, request, inbox, leave)
    signal.addEventListener('abort', onAbort)
    let hasEnded = false
    try {
      while (!hasEnded) {
        const event = await inbox.next(SILENCE_MS, onSilence)
        if (event instanceof Error) throw event
        hasEnded = event.kind === 'end'
        yield event
      }
    } finally {
      signal.removeEventListener('abort', onAbort)
      inbox.close()
      if (!hasEnded) this.#around.time.deliver(process.domain, this.machine.way(), () => leave.abort())
    }
  }

  /** The cell's end of the stream: events arrive in order, and not at all once it is broken. */
  #serve(process: CellProcess, request: GenerateRequest, inbox: Inbox, leave: AbortController): void {
    const { time, chaos } = this.#around
    const { machine } = this
    const caller = { epoch: this.#epoch, deadline: new Deadline('generate', 3_600_000) }
    let left = chaos.breaksAfter()
    let lastMs = 0
    const send = (event: GenerateEvent | Error): void => {
      lastMs = Math.max(lastMs, time.now() + machine.way())
      time.deliver(this.owner, lastMs - time.now(), () => inbox.put(event))
    }
    const stream = async (): Promise<void> => {
      for await (const event of process.host.generate(caller, request, leave.signal).events) {
        if (left !== undefined && left-- <= 0) {
          leave.abort()
          throw unreachable('the connection was reset')
        }
        if (!process.domain.isAlive) return
        send(event)
      }
    }
    process.domain.onDeath(() => send(lost(`${this.id} died`)))
    // The owner's death closes its sockets.
    this.owner.onDeath(() => time.deliver(process.domain, 1, () => leave.abort()))
    time.deliver(process.domain, machine.way(), () => {
      if (chaos.crash(machine.name, 'generate', 'before')) {
        machine.kill('a crash before generate')
        return
      }
      const serve = async (): Promise<void> => {
        try {
          await stream()
          const { isAlive } = process.domain
          if (isAlive && chaos.crash(machine.name, 'generate', 'after')) machine.kill('a crash after generate')
        } catch (error) {
          send(engineErrorOf(this.id, fromWireError(toWireError(error))))
        }
      }
      void serve()
    })
  }

  async enterTraining(epoch: number): Promise<void> {
    await this.#command('enter-training', epoch, ({ host }, caller) => host.enterTraining(caller))
  }

  async enterRollout(epoch: number): Promise<void> {
    await this.#command('enter-rollout', epoch, ({ host }, caller) => host.enterRollout(caller))
  }

  async pullWeights(epoch: number, from: string, policyVersion: number): Promise<void> {
    await this.#command('pull-weights', epoch, ({ host }, caller) => host.pullWeights(caller, from, policyVersion))
  }

  async setPolicyVersion(epoch: number, policyVersion: number): Promise<void> {
    await this.#command('set-policy-version', epoch, ({ host }, caller) => host.setPolicyVersion(caller, policyVersion))
  }

  async zeroGradients(epoch: number): Promise<void> {
    await this.#command('zero-gradients', epoch, ({ host }, caller) => host.zeroGradients(caller))
  }

  async forwardBackward(
    epoch: number,
    key: string,
    batch: MicroBatch,
    objective: Objective,
  ): Promise<ForwardBackwardResult> {
    const bytes = Buffer.from(batch.tokenIds.join())
    const work: Work<ForwardBackwardResult> = ({ host }, caller) =>
      host.forwardBackward(caller, key, bytes, { batch, objective })
    return this.#command('forward-backward', epoch, work, true)
  }

  async reduceGradients(epoch: number, from: readonly string[]): Promise<void> {
    await this.#command('reduce-gradients', epoch, ({ host }, caller) => host.reduceGradients(caller, from))
  }

  async optimizerStep(epoch: number, key: string, params: OptimizerParams): Promise<{ readonly gradientNorm: number }> {
    const bytes = Buffer.from(key)
    const work: Work<{ readonly gradientNorm: number }> = ({ host }, caller) =>
      host.optimizerStep(caller, key, bytes, params)
    return this.#command('optimizer-step', epoch, work, true)
  }

  async saveCheckpoint(epoch: number, folder: string): Promise<void> {
    await this.#command('save-checkpoint', epoch, ({ host }, caller) => host.saveCheckpoint(caller, folder))
  }

  async loadCheckpoint(epoch: number, folder: string, policyVersion: number): Promise<void> {
    await this.#command('load-checkpoint', epoch, ({ host }, caller) =>
      host.loadCheckpoint(caller, folder, policyVersion),
    )
  }

  async pinKv(epoch: number, executionIds: readonly ExecutionId[], ttlMs: number): Promise<readonly PinnedKv[]> {
    return this.#command('pin-kv', epoch, ({ host }, caller) => host.pinKv(caller, executionIds, ttlMs))
  }

  async fetchKv(epoch: number, from: string, executionIds: readonly ExecutionId[]): Promise<FetchedKv> {
    return this.#command('fetch-kv', epoch, ({ host }, caller) => host.fetchKv(caller, from, executionIds))
  }

  async releaseKv(epoch: number): Promise<void> {
    await this.#command('release-kv', epoch, ({ host }, caller) => host.releaseKv(caller))
  }

  async #command<T>(verb: Verb, epoch: number, work: Work<T>, isKeyed = false): Promise<T> {
    this.#epoch = Math.max(this.#epoch, epoch)
    return this.machine.ask(
      this.owner,
      verb,
      async (process) => work(process, { epoch, deadline: new Deadline(verb, VERB_MS) }),
      isKeyed,
    )
  }
}

/** A rollout engine beside the cells: the same process, that nobody tells epochs, and that takes weights from disk. */
export class SimStandalone extends SimCell implements StandaloneEngine {
  readonly slots: number

  constructor(machine: Machine, owner: Domain, around: Surroundings, slots: number) {
    super(machine, owner, around)
    this.slots = slots
  }

  async takeWeights({ folder, policyVersion }: PublishedWeights, signal: AbortSignal): Promise<void> {
    await this.#ask(signal, 'take-weights', async ({ host }) => {
      const caller = { epoch: 0, deadline: new Deadline('take-weights', VERB_MS) }
      await host.loadCheckpoint(caller, folder, policyVersion)
      await host.enterRollout(caller)
    })
  }

  async probe(signal: AbortSignal): Promise<void> {
    await this.#ask(signal, 'health', async ({ host }) => host.health())
  }

  async #ask<T>(
    signal: AbortSignal,
    verb: 'take-weights' | 'health',
    work: (process: CellProcess) => Promise<T>,
  ): Promise<T> {
    const left = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(lost(`nobody waits for ${verb} of ${this.id}`)))
    })
    try {
      return await Promise.race([this.machine.ask(this.owner, verb, work), left])
    } catch (error) {
      throw engineErrorOf(this.id, error)
    }
  }
}

type Work<T> = (process: CellProcess, caller: { readonly epoch: number; readonly deadline: Deadline }) => Promise<T>

/** What came in, and one reader that waits. */
class Inbox {
  readonly #items: (GenerateEvent | Error)[] = []
  #wake: (() => void) | undefined
  #isClosed = false

  put(item: GenerateEvent | Error): void {
    if (this.#isClosed) return
    this.#items.push(item)
    this.#wake?.()
  }

  async next(silenceMs: number, onSilence: () => void): Promise<GenerateEvent | Error> {
    for (;;) {
      const item = this.#items.shift()
      if (item !== undefined) return item
      const timer = setTimeout(onSilence, silenceMs)
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
      clearTimeout(timer)
    }
  }

  close(): void {
    this.#isClosed = true
  }
}

function engineErrorOf(id: string, error: unknown): Error {
  if (hasCode(error, 'E_CELL_NOT_ADMITTING') || hasCode(error, 'E_CELL_FENCED')) {
    return engineError('E_ENGINE_NOT_ADMITTING', `${id} admits no generation: ${error.message}`)
  }
  if (hasCode(error, 'E_CELL_UNREACHABLE')) return lost(error.message)
  return error as Error
}

function engineError(code: `E_ENGINE_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'engine', code, retryable: true })
}

const lost = (message: string): GyreError => engineError('E_ENGINE_UNREACHABLE', message)

/** Owns the processes for one control process. */
export class SimSupervisor implements CellSupervisor {
  readonly cells: readonly SimCell[]
  readonly #machines: readonly Machine[]
  readonly #owner: Domain
  readonly #around: Surroundings
  readonly #slots: number
  readonly #listeners: ((index: number) => void)[] = []
  readonly #starting = new Map<number, Promise<void>>()

  constructor(machines: readonly Machine[], owner: Domain, around: Surroundings, slots: number) {
    this.#machines = machines
    this.#owner = owner
    this.#around = around
    this.#slots = slots
    this.cells = machines.map((machine) => new SimCell(machine, owner, around))
    for (const machine of machines) this.watch(machine)
  }

  onDeath(listener: (index: number) => void): void {
    this.#listeners.push(listener)
  }

  async restart(index: number): Promise<void> {
    const running = this.#starting.get(index)
    if (running !== undefined) return running
    const restart = this.#restart(index).finally(() => this.#starting.delete(index))
    this.#starting.set(index, restart)
    await restart
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  watch(machine: Machine): void {
    const { process } = machine
    process?.domain.onDeath(() => {
      const delayMs = this.#around.chaos.latency() * 3
      this.#around.time.deliver(this.#owner, delayMs, () => {
        // Its own restart has begun: that death was asked for.
        if (this.#starting.has(machine.index) || machine.process !== undefined) return
        for (const listener of this.#listeners) listener(machine.index)
      })
    })
  }

  async #restart(index: number): Promise<void> {
    const machine = this.#machines[index] as Machine
    const { time, chaos } = this.#around
    machine.kill('its owner ends it')
    const fate = chaos.restart()
    await time.sleep(fate === 'hangs' ? 3000 : 40)
    if (fate === 'fails') {
      throw new GyreError('the process ended before it answered', { boundary: 'cell', code: 'E_CELL_START' })
    }
    machine.start(this.#slots)
    this.watch(machine)
  }
}
