/** @file A gateway on a real socket with everything around it that a test wants to look at. */
import { executionId, engineId } from '../../src/core/ids.ts'
import type { CallId, ExecutionId } from '../../src/core/ids.ts'
import type { AssistantItem } from '../../src/core/items.ts'
import { createGateway } from '../../src/gateway/gateway.ts'
import type { Gateway, GatewayDeps } from '../../src/gateway/gateway.ts'
import { ScriptedEngine, scriptedTurns } from '../../src/adapters/engine/scripted/scripted.ts'
import type { ScriptedEngineOptions } from '../../src/adapters/engine/scripted/scripted.ts'
import type { Engine, GenerateEvent, GenerateRequest } from '../../src/ports/engine.ts'
import type { ExecutionEndpoint, OpenExecution, RecordSink } from '../../src/ports/forwarding.ts'
import type { CallRecord } from '../../src/trajectory/node.ts'
import { ExecutionTree } from '../../src/trajectory/tree.ts'
import { byteCodec } from './byte-codec.ts'

/** Keeps records as a store would: copies, in the order they came. */
export class MemorySink implements RecordSink {
  readonly records: CallRecord[] = []
  readonly orphans: CallId[] = []
  /** Pause before a record counts as durable. [ms] */
  delayMs = 0

  async appendCall(record: CallRecord): Promise<void> {
    const copy = structuredClone(record)
    if (this.delayMs > 0) await sleep(this.delayMs)
    this.records.push(copy)
  }

  async markOrphan(_: ExecutionId, callId: CallId): Promise<void> {
    this.orphans.push(callId)
  }

  of(id: ExecutionId): readonly CallRecord[] {
    return this.records.filter((record) => record.executionId === id)
  }

  tree(id: ExecutionId): ExecutionTree {
    return ExecutionTree.fromRecords(id, this.of(id))
  }
}

export interface SeenLeg {
  readonly engine: string
  readonly request: GenerateRequest
  readonly tokenIds: number[]
}

/** Passes everything through and keeps what went by. */
export function watched(engine: Engine, legs: SeenLeg[]): Engine {
  return {
    id: engine.id,
    async *generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
      const leg: SeenLeg = { engine: engine.id, request, tokenIds: [] }
      legs.push(leg)
      for await (const event of engine.generate(request, signal)) {
        if (event.kind === 'tokens') leg.tokenIds.push(...event.tokenIds)
        yield event
      }
    },
  }
}

export interface Rig {
  readonly gateway: Gateway
  readonly sink: MemorySink
  readonly legs: SeenLeg[]
  readonly failures: unknown[]
  readonly open: (name: string, spec?: Partial<OpenExecution>) => ExecutionEndpoint & { readonly id: ExecutionId }
  readonly addEngine: (name: string, options: Omit<ScriptedEngineOptions, 'id'>) => void
  readonly route: (id: ExecutionId, engine: string | undefined, routeEpoch?: number) => void
  readonly [Symbol.asyncDispose]: () => Promise<void>
}

export async function startRig(deps: Partial<GatewayDeps> = {}): Promise<Rig> {
  const sink = new MemorySink()
  const legs: SeenLeg[] = []
  const failures: unknown[] = []
  const onFailure = (error: unknown): void => void failures.push(error)
  const gateway = await createGateway({
    codec: byteCodec,
    sink,
    model: 'policy',
    maxContext: 65_536,
    onFailure,
    ...deps,
    limits: { abandonMs: 3000, keepAliveMs: 1000, cancelMs: 500, ...deps.limits },
  })
  return {
    gateway,
    sink,
    legs,
    failures,
    open: (name, spec = {}) => {
      const id = executionId(name)
      const sampling = { temperature: 1, topP: 1, topK: 0, seed: 7, maxTokens: 4096 }
      return { id, ...gateway.openExecution({ executionId: id, profile: 'generic', sampling, maxCalls: 0, ...spec }) }
    },
    addEngine: (name, options) =>
      gateway.setEngine(watched(new ScriptedEngine({ id: engineId(name), ...options }), legs)),
    route: (id, engine, routeEpoch = 1) =>
      gateway.setRoutes([
        { executionId: id, engineId: engine === undefined ? undefined : engineId(engine), routeEpoch },
      ]),
    [Symbol.asyncDispose]: async () => gateway.close(),
  }
}

export function turn(
  text: string,
  ...calls: readonly (readonly [name: string, argumentsText: string])[]
): AssistantItem {
  const toolCalls = calls.map(([name, argumentsText]) => ({ id: '', name, argumentsText }))
  return { kind: 'assistant', thinking: '', text, toolCalls }
}

/** Says the texts one after the other. */
export function says(...turns: readonly (string | AssistantItem)[]): Omit<ScriptedEngineOptions, 'id'> {
  const items = turns.map((said) => (typeof said === 'string' ? turn(said) : said))
  return { script: scriptedTurns(byteCodec, items) }
}

export async function sleep(ms: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, ms))
}

/** @throws when `isTrue` does not come true in time. */
export async function until(isTrue: () => boolean, timeoutMs = 3000): Promise<void> {
  for (const end = Date.now() + timeoutMs; !isTrue(); await sleep(2)) {
    if (Date.now() > end) throw new Error(`not within ${timeoutMs} ms: ${isTrue.toString()}`)
  }
}
