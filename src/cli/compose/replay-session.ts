/** @file Plays a recording through the real gateway over HTTP, and measures what the tree and admission make of it. */
import { GyreError } from '../../core/errors.ts'
import { executionId } from '../../core/ids.ts'
import type { CallId, ExecutionId } from '../../core/ids.ts'
import { createGateway } from '../../gateway/gateway.ts'
import type { Gateway } from '../../gateway/gateway.ts'
import type { RecordSink } from '../../ports/forwarding.ts'
import { wrongContexts } from '../../recording/contexts.ts'
import type { AskedCall, WrongContext } from '../../recording/contexts.ts'
import { bodyOf } from '../../recording/files.ts'
import type { RecordedExchange, RecordingFiles } from '../../recording/format.ts'
import { ReplayEngine } from '../../recording/replay-engine.ts'
import { ReplaySchedule } from '../../recording/replay-schedule.ts'
import { routeOf } from '../../recording/route.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import type { CallRecord } from '../../trajectory/node.ts'
import { harnessProfile } from '../../trajectory/profiles.ts'
import { ExecutionTree } from '../../trajectory/tree.ts'
import { withoutVolatileLines } from '../../trajectory/volatile.ts'
import { parseRequest } from '../../wire/request.ts'
import { sendRecorded } from './replay-client.ts'
import type { SentRequest } from './replay-client.ts'

export interface ReplayOptions {
  readonly codec: ChatCodec
  /** False for another tokenizer than the recording's: then its limits and refusals say nothing. */
  readonly isOwnTokenizer: boolean
  /** For the whole session. [ms] Default 60 s. */
  readonly deadlineMs?: number
}

export interface ReplayResult {
  readonly tree: ExecutionTree
  readonly wrong: readonly WrongContext[]
  /** What went otherwise than in the recording. */
  readonly differences: readonly string[]
}

const SESSION = executionId('session')
/** A call that was aborted waits so long for a client before it is given up again; one that was not, longer. [ms] */
const ABANDON_MS = 1000
const HOLD_MS = 30_000
const WIDE = 1 << 28

/** @throws GyreError E_CONFIG_RECORDING for a broken recording, E_GATEWAY_REPLAY when it cannot be played to its end. */
export async function replayRecording(recording: RecordingFiles, options: ReplayOptions): Promise<ReplayResult> {
  const replay = new Replay(recording, options)
  const { head } = recording
  const own = options.isOwnTokenizer
  const gateway = await createGateway({
    codec: options.codec,
    sink: replay.sink,
    model: 'gyre-policy',
    maxContext: own ? head.contextWindow : WIDE,
    limits: { abandonMs: recording.calls.some((call) => call.status === 'aborted') ? ABANDON_MS : HOLD_MS },
    onMatch: (arrival) => replay.noteMatched(arrival),
    onFailure: (error) => replay.differences.push(`the gateway failed: ${String(error)}`),
  })
  try {
    const { baseUrl, apiKey } = gateway.openExecution({
      executionId: SESSION,
      profile: head.profile,
      sampling: { temperature: 1, topP: 1, topK: 0, seed: 0, maxTokens: own ? head.maxOutputTokens : WIDE },
      maxCalls: 0,
    })
    gateway.setEngine(replay.engine)
    gateway.setRoutes([{ executionId: SESSION, engineId: replay.engine.id, routeEpoch: 0 }])
    await within(options.deadlineMs ?? 60_000, replay.play(gateway, baseUrl, apiKey), () => replay.whereItStands())
    return replay.result()
  } finally {
    await gateway.close()
  }
}

/** Counts what is committed, so that the schedule can go on. */
class ReplaySink implements RecordSink {
  readonly records: CallRecord[] = []
  readonly orphans: CallId[] = []
  readonly #onCommit: () => void

  constructor(onCommit: () => void) {
    this.#onCommit = onCommit
  }

  appendCall(record: CallRecord): Promise<void> {
    this.records.push(record)
    this.#onCommit()
    return Promise.resolve()
  }

  markOrphan(_executionId: ExecutionId, callId: CallId): Promise<void> {
    this.orphans.push(callId)
    return Promise.resolve()
  }
}

class Replay {
  readonly sink: ReplaySink
  readonly engine: ReplayEngine
  readonly differences: string[] = []
  readonly #recording: RecordingFiles
  readonly #options: ReplayOptions
  readonly #schedule: ReplaySchedule
  /** In the order they are sent, which is the order in which they arrive. */
  readonly #queue: readonly RecordedExchange[]
  readonly #sent = new Map<RecordedExchange, SentRequest>()
  readonly #ended = new Set<number>()

  constructor(recording: RecordingFiles, options: ReplayOptions) {
    this.#recording = recording
    this.#options = options
    this.#schedule = new ReplaySchedule(recording.exchanges, recording.calls)
    const all = this.#schedule.sendOrder()
    this.#queue = options.isOwnTokenizer ? all : all.filter(({ match }) => match !== undefined)
    this.sink = new ReplaySink(() => this.#schedule.noteCommitted())
    this.engine = new ReplayEngine(this.#schedule, options.codec, (call) => this.#hangUp(call))
  }

  noteMatched(arrival: number): void {
    const exchange = this.#queue[arrival]
    if (exchange !== undefined) this.#schedule.noteMatched(exchange)
  }

  async play(gateway: Gateway, baseUrl: string, apiKey: string): Promise<void> {
    for (const exchange of this.#queue) {
      await this.#schedule.untilMaySend(exchange)
      // Whoever asks again has left before.
      if (exchange.match !== undefined) this.#hangUpAll(exchange.match.call)
      const sent = sendRecorded(`${baseUrl}${exchange.path}`, apiKey, exchange.headers, this.#bodyOf(exchange))
      this.#sent.set(exchange, sent)
      if (exchange.match === undefined) await sent.ended
      else await Promise.race([this.#schedule.untilMatched(exchange), this.#refusal(exchange, sent)])
      if (exchange.match !== undefined && this.#ended.has(exchange.match.call)) this.#hangUpOne(exchange)
    }
    await Promise.all(
      this.#queue.filter((one) => this.#endsByItself(one)).map(async (one) => this.#sent.get(one)?.ended),
    )
    await gateway.closeExecution(SESSION)
    for (const exchange of this.#queue) await this.#compare(exchange)
  }

  result(): ReplayResult {
    const { records, orphans } = this.sink
    const tree = ExecutionTree.fromRecords(SESSION, records)
    for (const orphan of orphans) tree.markOrphan(orphan)
    this.#compareCalls(tree)
    return { tree, wrong: wrongContexts(this.#asked(), tree, this.#options.codec), differences: this.differences }
  }

  whereItStands(): string {
    const next = this.#queue.find((exchange) => !this.#sent.has(exchange))
    const at = next === undefined ? 'after the last request' : `before request ${next.arrival}`
    return `${this.sink.records.length} of ${this.#recording.calls.length} calls are committed, ${at}`
  }

  /** A request that met the tree when it was recorded and is refused now would be waited for in vain. */
  async #refusal({ arrival }: RecordedExchange, sent: SentRequest): Promise<void> {
    const { status, text } = await sent.ended
    if (status === 200) return new Promise(() => undefined)
    throw replayError(
      `request ${arrival} was answered with ${status}, which it was not when recorded: ${text.slice(0, 300)}`,
    )
  }

  /** Not before the end of the execution: a call that never ended for a client that stayed. */
  #endsByItself({ match, complete }: RecordedExchange): boolean {
    const call = match === undefined ? undefined : this.#schedule.callOf(match.call)
    return match === undefined || !complete || (call !== undefined && call.status !== 'aborted')
  }

  #bodyOf(exchange: RecordedExchange): unknown {
    return bodyOf(exchange, this.#recording.parts)
  }

  #hangUp(call: number): void {
    this.#ended.add(call)
    this.#hangUpAll(call)
  }

  #hangUpAll(call: number): void {
    for (const exchange of this.#sent.keys()) if (exchange.match?.call === call) this.#hangUpOne(exchange)
  }

  #hangUpOne(exchange: RecordedExchange): void {
    if (!exchange.complete) this.#sent.get(exchange)?.hangUp()
  }

  async #compare(exchange: RecordedExchange): Promise<void> {
    const end = await this.#sent.get(exchange)?.ended
    if (end === undefined || !exchange.complete || !this.#options.isOwnTokenizer) return
    if (end.status === exchange.status && end.isComplete) return
    const now = end.isComplete ? end.status : 'no whole answer'
    this.differences.push(`request ${exchange.arrival} was answered with ${exchange.status}, now with ${now}`)
  }

  #compareCalls(tree: ExecutionTree): void {
    for (const recorded of this.#recording.calls) {
      const call = tree.calls()[recorded.sequence]
      const node = call === undefined ? undefined : tree.node(call.node)
      const now = node?.provenance === 'policy' ? `${call?.role ?? ''} ${node.status}` : 'missing'
      const was = `${recorded.role} ${recorded.status}`
      if (now !== was) this.differences.push(`call ${recorded.call} was ${was}, now it is ${now}`)
    }
  }

  /** The first request of each call. */
  #asked(): readonly AskedCall[] {
    const asked = new Map<number, AskedCall>()
    for (const exchange of this.#queue) {
      const { match } = exchange
      const context = match === undefined ? undefined : this.engine.contexts.get(match.call)
      const route = routeOf(exchange.path, exchange.headers)
      if (match === undefined || context === undefined || route === undefined || asked.has(match.call)) continue
      const parsed = parseRequest(route.dialect, this.#bodyOf(exchange), route.target)
      const items = withoutVolatileLines(harnessProfile(this.#recording.head.profile), parsed.items)
      const { call, committedBefore } = match
      asked.set(call, { callId: `${SESSION}.${call}`, committedBefore, context, items })
    }
    return [...asked.values()]
  }
}

async function within(deadlineMs: number, work: Promise<void>, where: () => string): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(replayError(`the replay stands still: ${where()} after ${deadlineMs} ms`))
    }, deadlineMs)
  })
  try {
    await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

function replayError(message: string): GyreError {
  return new GyreError(message, { boundary: 'gateway', code: 'E_GATEWAY_REPLAY' })
}
