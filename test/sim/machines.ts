/**
 * @file The machines that cells run on, and the network between them. A cell process here is the real CellHost around a
 * small policy; what is virtual is its engine, its socket and its disk.
 */
import type { Deadline } from '../../src/cell/deadline.ts'
import { CellHost } from '../../src/cell/host.ts'
import type { PeerReader } from '../../src/cell/host.ts'
import type { KvPeer } from '../../src/cell/kv-handover.ts'
import { fromWireError, toWireError } from '../../src/cell/wire-errors.ts'
import { GyreError } from '../../src/core/errors.ts'
import { cellId } from '../../src/core/ids.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import type { KvOffer } from '../../src/ports/cell.ts'
import type { Chaos } from './chaos.ts'
import { SimEngine } from './engine.ts'
import type { Disk } from './engine.ts'
import type { Verb } from './plan.ts'
import { Domain } from './virtual-time.ts'
import type { VirtualTime } from './virtual-time.ts'

export interface Surroundings {
  readonly time: VirtualTime
  readonly chaos: Chaos
  readonly disk: Disk
  /** A broken promise, seen by whoever saw it. */
  readonly accuse: (problem: string) => void
  readonly log: (line: string) => void
}

export interface CellProcess {
  readonly domain: Domain
  readonly host: CellHost
  readonly engine: SimEngine
}

export class Machine {
  readonly index: number
  readonly name: string
  readonly address: string
  process: CellProcess | undefined
  /** The network to it is cut until then: what is sent arrives later. [ms] */
  cutUntilMs = 0
  /** It computes ten times slower until then. [ms] */
  slowUntilMs = 0
  readonly #all: readonly Machine[]
  readonly #around: Surroundings
  #starts = 0

  /** @param name `cell-0`, `standalone-0`. */
  constructor(name: string, index: number, all: readonly Machine[], around: Surroundings) {
    this.name = name
    this.index = index
    this.address = `sim:${name}`
    this.#all = all
    this.#around = around
  }

  start(slots: number): void {
    this.kill('it is started anew')
    const { time } = this.#around
    const domain = new Domain(`${this.name}#${this.#starts++}`)
    const engine = new SimEngine(this, this.#around)
    const peers: PeerReader = {
      weights: async (address, deadline) => {
        const reading = this.#peer(address).ask(domain, 'weights', ({ host }) => host.weights())
        return (await deadline.wait(reading)).data
      },
      gradients: async (address, deadline) => {
        return deadline.wait(this.#peer(address).ask(domain, 'gradients', ({ host }) => host.gradients()))
      },
      kv: (address) => new SimKvPeer(this.#peer(address), domain),
    }
    const host = new CellHost({ engine, cellId: cellId(this.name), slots, peers })
    this.process = { domain, host, engine }
    this.#around.log(`${domain.name} starts at ${time.now()}`)
  }

  kill(why: string): void {
    const { process } = this
    if (process === undefined) return
    this.process = undefined
    this.#around.log(`${process.domain.name} dies: ${why}`)
    process.domain.kill()
  }

  /** How long this much work takes here now. [ms] */
  takes(ms: number): number {
    return this.#around.time.now() < this.slowUntilMs ? ms * 10 : ms
  }

  /** What the way to or from it takes, now. [ms] */
  way(): number {
    const { time, chaos } = this.#around
    return chaos.latency() + Math.max(0, this.cutUntilMs - time.now())
  }

  /**
   * One call of `client` to the process that is here now. It may never be answered: only the caller's deadline ends
   * such a wait.
   */
  async ask<T>(
    client: Domain,
    verb: Verb | 'health' | 'hello' | 'take-weights',
    work: (process: CellProcess) => Promise<T>,
    isKeyed = false,
  ): Promise<T> {
    const { time, chaos } = this.#around
    const { process } = this
    return new Promise((resolve, reject) => {
      let isAnswered = false
      const answer = (settle: () => void): void => {
        if (isAnswered) return
        isAnswered = true
        time.deliver(client, this.way(), settle)
      }
      const reset = (why: string): void => answer(() => reject(unreachable(`${this.address} ${why} ${verb}`)))
      if (process === undefined) return reset('is down:')
      process.domain.onDeath(() => reset('died during'))
      const fate = chaos.fate(isKeyed)
      if (fate !== 'fine') this.#around.log(`${verb} of ${this.address}: ${fate}`)
      if (fate === 'request-lost-silent') return undefined
      if (fate === 'request-lost-reset') return reset('was not reached by')
      let isLastDelivery = fate !== 'repeated'
      const serve = async (): Promise<void> => {
        if (!this.#survives(process, verb, 'before')) return
        try {
          const value = await work(process)
          if (!this.#survives(process, verb, 'after') || !isLastDelivery) return
          if (fate === 'answer-lost-reset') reset('was cut off before it answered')
          else if (fate !== 'answer-lost-silent') answer(() => resolve(value))
        } catch (error) {
          if (isLastDelivery) answer(() => reject(fromWireError(toWireError(error))))
        }
      }
      const arrive = (): void => void serve()
      // A call is made again only while its caller waits: no delivery of it comes after its answer.
      const lateMs = fate === 'repeated' ? 0 : chaos.lateness()
      time.deliver(process.domain, this.way() + lateMs, arrive)
      if (fate !== 'repeated') return undefined
      time.deliver(process.domain, this.way() + 5, () => {
        isLastDelivery = true
        arrive()
      })
    })
  }

  #survives(process: CellProcess, verb: string, when: 'before' | 'after'): boolean {
    if (!process.domain.isAlive) return false
    if (!this.#around.chaos.crash(this.name, verb as Verb, when)) return true
    if (this.process === process) this.kill(`a crash ${when} ${verb}`)
    return false
  }

  #peer(address: string): Machine {
    const peer = this.#all.find((machine) => machine.address === address)
    if (peer === undefined) throw unreachable(`nobody is at ${address}`)
    return peer
  }
}

class SimKvPeer implements KvPeer {
  readonly #peer: Machine
  readonly #client: Domain

  constructor(peer: Machine, client: Domain) {
    this.#peer = peer
    this.#client = client
  }

  async offer(executionIds: readonly ExecutionId[], deadline: Deadline): Promise<KvOffer> {
    return deadline.wait(this.#peer.ask(this.#client, 'pinned-kv', async ({ host }) => host.kv.offer(executionIds)))
  }

  async *blocks(serial: number, blocks: Int32Array, deadline: Deadline): AsyncGenerator<Uint8Array, void, undefined> {
    const reading = this.#peer.ask(this.#client, 'kv-blocks', ({ engine }) => engine.kv.read(serial, blocks))
    const { buffer } = await deadline.wait(reading)
    const bytes = new Uint8Array(buffer)
    // Pieces of a stream end anywhere.
    yield bytes.slice(0, 5)
    yield bytes.slice(5)
  }

  close(): Promise<void> {
    return Promise.resolve()
  }
}

export function unreachable(message: string): GyreError {
  return new GyreError(message, { boundary: 'cell', code: 'E_CELL_UNREACHABLE', retryable: true })
}
