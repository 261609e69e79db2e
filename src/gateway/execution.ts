/** @file The gateway's side of one execution: its key, its tree, its calls, and when a request is a retry. */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { invariant } from '../core/errors.ts'
import type { CallId } from '../core/ids.ts'
import type { OpenExecution } from '../ports/forwarding.ts'
import type { CallRecord, NodeId } from '../trajectory/node.ts'
import { keepInSlabs } from '../trajectory/id-slabs.ts'
import { PathTree, ROOT } from '../trajectory/path-tree.ts'
import { harnessProfile } from '../trajectory/profiles.ts'
import { pathContent } from '../trajectory/tree.ts'
import { withoutVolatileLines } from '../trajectory/volatile.ts'
import { closedError, gatewayError } from './faults.ts'
import { BodyHistory } from './history.ts'
import type { ModelCall } from './model-call.ts'

/** What makes two requests the same request. */
export interface RequestIdentity {
  readonly thread: string
  readonly requestHash: string
  readonly contextHash: string
  /** The client says that it tries again. */
  readonly isMarkedRetry: boolean
}

export interface Counters {
  modelCalls: number
  sampledTokens: number
  requestsMoved: number
  harnessErrors: number
  tokensMismatched: number
}

export function zeroCounters(): Counters {
  return { modelCalls: 0, sampledTokens: 0, requestsMoved: 0, harnessErrors: 0, tokensMismatched: 0 }
}

export class Execution {
  readonly spec: OpenExecution
  readonly apiKey: string
  readonly counters = zeroCounters()
  /** Silence after which its harness gives a request up. [ms] */
  readonly silenceLimitMs: number
  readonly bodies: BodyHistory
  readonly #keyDigest: Buffer
  readonly #running = new Map<ModelCall, Promise<void>>()
  /** By thread and request: what a retry may attach to. */
  readonly #latest = new Map<string, ModelCall>()
  /** By thread and context: committed answers to the same question, oldest first. */
  readonly #answers = new Map<string, { readonly callId: CallId; readonly node: NodeId }[]>()
  readonly #callOfNode = new Map<NodeId, ModelCall>()
  /** Nodes that a later request continued from. */
  readonly #used = new Set<NodeId>()
  readonly #timesAsked = new Map<string, number>()
  /** By thread and request: answers that a gateway before this one gave. */
  readonly #restored = new Map<string, { readonly callId: CallId; readonly node: NodeId }>()
  #tree = new PathTree(keepInSlabs())
  #persisted: Promise<void> = Promise.resolve()
  #isClosed = false
  #started = 0

  constructor(spec: OpenExecution) {
    const { apiKey = randomBytes(24).toString('base64url'), records = [], ...rest } = spec
    this.spec = rest
    const profile = harnessProfile(spec.profile)
    this.silenceLimitMs = profile.silenceLimitMs
    this.bodies = new BodyHistory((items) => withoutVolatileLines(profile, items))
    this.apiKey = apiKey
    this.#keyDigest = digest(apiKey)
    for (const record of records) this.#restore(record)
  }

  get tree(): PathTree {
    return this.#tree
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  isKey(key: string): boolean {
    return timingSafeEqual(digest(key), this.#keyDigest)
  }

  /** @throws GyreError E_GATEWAY_CLOSED. */
  assertOpen(): void {
    if (this.#isClosed) throw closedError(this.spec.executionId)
  }

  /** @throws GyreError E_GATEWAY_CLOSED, E_GATEWAY_CALL_LIMIT. */
  assertAdmits(): void {
    this.assertOpen()
    const { executionId, maxCalls } = this.spec
    if (maxCalls > 0 && this.#started >= maxCalls) {
      throw gatewayError(
        'E_GATEWAY_CALL_LIMIT',
        `execution ${executionId} has used its ${maxCalls} model calls: stop here`,
      )
    }
  }

  /** Numbers a new call by arrival, and counts how often its request was asked before. */
  admit(requestHash: string): { readonly number: number; readonly timesAsked: number } {
    this.assertAdmits()
    const timesAsked = this.#timesAsked.get(requestHash) ?? 0
    this.#timesAsked.set(requestHash, timesAsked + 1)
    this.counters.modelCalls++
    return { number: this.#started++, timesAsked }
  }

  track(call: ModelCall, run: Promise<void>): void {
    this.#latest.set(requestKey(call.facts), call)
    this.#running.set(call, run)
    void run.finally(() => this.#running.delete(call))
  }

  /** A running call with the same request: one that its client has left, else the latest. */
  findRunning(identity: RequestIdentity): ModelCall | undefined {
    const twins = [...this.#running.keys()].filter(
      (call) =>
        call.state.kind === 'running' && !call.signal.aborted && requestKey(call.facts) === requestKey(identity),
    )
    return twins.find((call) => !call.isWaitedFor) ?? twins.at(-1)
  }

  /**
   * The call this request repeats. One that runs is joined when its client has left or this one says that it retries:
   * else both want an answer. One that was answered is replayed when the client left early, says that it retries, or
   * asks again soon without having used the answer; an empty answer that arrived cannot be used, so asking again is a
   * new question.
   */
  findRepeated(identity: RequestIdentity, atMs: number, replayMs: number): ModelCall | undefined {
    const running = this.findRunning(identity)
    if (running !== undefined) return identity.isMarkedRetry || !running.isWaitedFor ? running : undefined
    const call = this.#latest.get(requestKey(identity))
    if (call === undefined || call.isUsed || call.state.kind === 'failed' || call.signal.aborted) return undefined
    if (call.wasLeft || identity.isMarkedRetry || call.state.kind === 'running') return call
    const isEmpty = call.parts.every((part) => part.kind === 'thinking')
    return !isEmpty && atMs - call.state.atMs <= replayMs ? call : undefined
  }

  /** A request that continues from a path proves that every answer on it was used. */
  markUsed(leaf: NodeId): void {
    // What is above a node that was marked before was marked with it.
    for (let at = leaf; at !== ROOT && !this.#used.has(at); at = this.#tree.parentOf(at)) {
      this.#used.add(at)
      const call = this.#callOfNode.get(at)
      if (call === undefined) continue
      call.isUsed = true
      this.#callOfNode.delete(at)
      this.#latest.delete(requestKey(call.facts))
    }
  }

  noteAnswer(call: ModelCall, node: NodeId): void {
    this.#callOfNode.set(node, call)
    // It takes no other answer's place.
    if (call.facts.isTwin) return
    const key = `${call.facts.thread}\n${call.facts.contextHash}`
    const restored = this.#restored.get(requestKey(call.facts))
    const answers = this.#answers.get(key) ?? (restored === undefined ? [] : [restored])
    answers.push({ callId: call.facts.callId, node })
    this.#answers.set(key, answers)
  }

  /** Records become durable in commit order, so that what survives a kill is a prefix of the tree. */
  async persist(record: CallRecord, append: (record: CallRecord) => Promise<void>): Promise<void> {
    this.#persisted = this.#persisted.then(async () => append(record))
    await this.#persisted
  }

  /** Aborts what runs, waits for its records, and returns the calls whose answer another one replaced. */
  async close(): Promise<readonly CallId[]> {
    this.#isClosed = true
    for (const call of this.#running.keys()) call.abort('the execution has ended')
    await Promise.allSettled(this.#running.values())
    const orphans = [...this.#answers.values()].flatMap((answers) => this.#replaced(answers))
    this.#forget()
    return orphans
  }

  /** What it answered then can be continued from, and is an orphan when the same is asked again and answered anew. */
  #restore(record: CallRecord): void {
    for (const node of record.nodes) {
      const id = this.#tree.add(node.parent, node.tokenIds, pathContent(node))
      invariant(id === node.id, `the records of execution ${record.executionId} are whole and in order`)
    }
    const answer = record.nodes.at(-1)
    if (answer?.provenance !== 'policy') return
    if (answer.status === 'committed')
      this.#restored.set(requestKey(record), { callId: record.callId, node: answer.id })
    this.#timesAsked.set(record.requestHash, (this.#timesAsked.get(record.requestHash) ?? 0) + 1)
    this.#started = Math.max(this.#started, numberOf(record.callId) + 1)
    this.counters.modelCalls++
    this.counters.sampledTokens += answer.tokenIds.length
  }

  #replaced(answers: readonly { readonly callId: CallId; readonly node: NodeId }[]): readonly CallId[] {
    return answers
      .slice(0, -1)
      .filter(({ node }) => this.#tree.childrenOf(node).length === 0)
      .map(({ callId }) => callId)
  }

  /** The records hold everything; a closed execution only remembers its key, to refuse calls clearly. */
  #forget(): void {
    this.#tree = new PathTree(keepInSlabs())
    this.bodies.forget()
    for (const map of [this.#latest, this.#answers, this.#callOfNode, this.#timesAsked, this.#restored, this.#used]) {
      map.clear()
    }
  }
}

/** Ids of calls end in their number. */
function numberOf(callId: CallId): number {
  return Number(callId.slice(callId.lastIndexOf('.') + 1))
}

function requestKey(request: { readonly thread: string; readonly requestHash: string }): string {
  return `${request.thread}\n${request.requestHash}`
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}
