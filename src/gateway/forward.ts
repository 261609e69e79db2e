/**
 * @file The life of one model call, from a harness's request to its record.
 *
 *   parse -> who asks -> is it a retry -> match and encode the tail -> generate -> commit -> record -> answer
 *
 * Routing is in routes.ts, moving between engines in sampler.ts, HTTP in server.ts and respond.ts.
 */
import { callId } from '../core/ids.ts'
import type { Usage } from '../core/items.ts'
import { hashSeed } from '../core/rng.ts'
import type { RecordSink } from '../ports/forwarding.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { LeafRole } from '../trajectory/node.ts'
import { classifyCall } from '../trajectory/classify.ts'
import { harnessProfile } from '../trajectory/profiles.ts'
import type { Dialect } from '../wire/dialect.ts'
import type { BlockEncoder } from './block-encoder.ts'
import type { Conversation } from './conversation.ts'
import type { Execution, RequestIdentity } from './execution.ts'
import { closedError, faultOf, overlongError } from './faults.ts'
import { ModelCall } from './model-call.ts'
import { planPrompt } from './prompt.ts'
import { commitCall, isChecked, isPathExact } from './record.ts'
import type { CallEnd } from './record.ts'
import type { GenerationEnd, Sampler } from './sampler.ts'

export interface ForwardDeps {
  readonly codec: ChatCodec
  readonly encoder: BlockEncoder
  readonly sink: RecordSink
  readonly sampler: Sampler
  /** What every engine accepts. [tokens] */
  readonly maxContext: number
  /** How long a running call whose clients all hung up waits for one to come back. [ms] */
  readonly abandonMs: number
  /** How long after an answer the same request counts as a retry. [ms] */
  readonly replayMs: number
  /** How long a request waits to see whether the client that asked the same has hung up. [ms] */
  readonly hangUpMs: number
  /** ms since the Unix epoch. */
  readonly now: () => number
  /** Told of every failure of ours that a harness sees. */
  readonly onFailure: (error: unknown, execution: Execution | undefined) => void
}

export type RequestHeaders = Readonly<Record<string, string | readonly string[] | undefined>>

/** Who asks, and for what. */
export interface Asked {
  readonly identity: RequestIdentity
  readonly role: LeafRole
}

/**
 * Reads who asks. A client that tries again closes its connection, but the new request may be here before that is seen:
 * a request that is being answered is given a moment to lose its client.
 */
export async function identify(
  deps: Pick<ForwardDeps, 'hangUpMs'>,
  execution: Execution,
  conversation: Conversation,
  headers: RequestHeaders,
): Promise<Asked> {
  const { envelope, signals, contextHash } = conversation
  const facts = { items: signals, headers, hasTools: envelope.tools.length > 0 }
  const { thread, role } = classifyCall(harnessProfile(execution.spec.profile), facts)
  const isMarkedRetry = Number(headers['x-stainless-retry-count'] ?? 0) > 0
  const requestHash = `${contextHash}:${envelope.maxTokens ?? ''}`
  const identity = { thread, requestHash, contextHash, isMarkedRetry }
  if (!isMarkedRetry) await execution.findRunning(identity)?.deserted(deps.hangUpMs)
  return { identity, role }
}

/**
 * Returns the call that answers the request: a new one that now runs, or the one the request repeats.
 * @throws GyreError E_GATEWAY_CLOSED, E_GATEWAY_CALL_LIMIT, E_ENGINE_OVERLONG.
 */
export function forward(
  deps: ForwardDeps,
  execution: Execution,
  dialect: Dialect,
  conversation: Conversation,
  { identity, role }: Asked,
): ModelCall {
  const { spec } = execution
  const { envelope } = conversation
  const { tools } = envelope
  const repeated = execution.findRepeated(identity, deps.now(), deps.replayMs)
  if (repeated !== undefined) return repeated

  execution.assertAdmits()
  const prompt = planPrompt(execution.tree, deps.encoder, conversation)
  execution.markUsed(prompt.parent)
  const room = deps.maxContext - prompt.tokenIds.length
  if (room < 1) throw overlongError(prompt.tokenIds.length, deps.maxContext)
  const { number, timesAsked } = execution.admit(identity.requestHash)
  const { thread, requestHash, contextHash } = identity
  const call = new ModelCall(
    {
      callId: callId(`${spec.executionId}.${number}`),
      number,
      dialect: dialect.name,
      thread,
      role,
      requestHash,
      contextHash,
      promptTokens: prompt.tokenIds.length,
      isTwin: execution.findRunning(identity) !== undefined,
      // A call of a tool that was found on the way is read by its schema too.
      tools: [...tools, ...envelope.deferredTools.values()],
      startedAtMs: deps.now(),
    },
    prompt,
    deps.codec,
    deps.abandonMs,
  )
  const maxTokens = Math.min(envelope.maxTokens ?? spec.sampling.maxTokens, spec.sampling.maxTokens, room)
  const seed = hashSeed(spec.sampling.seed, requestHash, timesAsked)
  execution.track(call, runCall(deps, execution, call, maxTokens, seed))
  return call
}

/** Never rejects: what goes wrong is the call's state. */
async function runCall(
  deps: ForwardDeps,
  execution: Execution,
  call: ModelCall,
  maxTokens: number,
  seed: number,
): Promise<void> {
  try {
    const end = await generate(deps, execution, call, maxTokens, seed)
    call.flush()
    const callsTools = call.parts.some((part) => part.kind === 'tool-call')
    const finishReason = end.finishReason === 'stop' && callsTools ? 'tool-calls' : end.finishReason
    const usage = usageOf(call, end.cachedTokens)
    await record(deps, execution, call, { status: 'committed', finishReason, usage, moves: end.moves })
    call.answer(finishReason, usage, deps.now())
  } catch (error) {
    await failCall(deps, execution, call, error)
  }
}

async function generate(
  deps: ForwardDeps,
  execution: Execution,
  call: ModelCall,
  maxTokens: number,
  seed: number,
): Promise<GenerationEnd> {
  const { executionId, sampling } = execution.spec
  const { temperature, topP, topK } = sampling
  const end = await deps.sampler.run({
    requestId: call.facts.callId,
    executionId,
    promptIds: call.prompt.tokenIds,
    // The execution's own distribution is the one that is trained, whatever the harness asks for.
    sampling: { maxTokens, temperature, topP, topK, stopTokenIds: deps.codec.stopTokenIds, seed },
    signal: call.signal,
    sampled: call.sampled,
    onTokens: (tokenIds) => call.push(tokenIds),
  })
  if (end.moves > 0) execution.counters.requestsMoved++
  return end
}

async function record(
  deps: ForwardDeps,
  execution: Execution,
  call: ModelCall,
  end: Omit<CallEnd, 'endedAtMs'>,
): Promise<void> {
  const { tree, counters } = execution
  const entry = commitCall(tree, execution.spec.executionId, call, { ...end, endedAtMs: deps.now() })
  const leaf = tree.nextNodeId - 1
  if (end.status === 'committed') execution.noteAnswer(call, leaf)
  if (isChecked(tree, leaf) && !isPathExact(tree, leaf, call)) counters.tokensMismatched++
  counters.sampledTokens += call.sampled.tokenIds.length
  await execution.persist(entry, async (durable) => deps.sink.appendCall(durable))
}

/** A call that nobody waits for keeps what was sampled, for the record; any other failure is ours. */
async function failCall(deps: ForwardDeps, execution: Execution, call: ModelCall, error: unknown): Promise<void> {
  if (!call.signal.aborted) {
    call.fail(error)
    if (faultOf(error).kind !== 'internal') return
    execution.counters.harnessErrors++
    deps.onFailure(error, execution)
    return
  }
  try {
    call.flush()
    const end = { status: 'aborted', finishReason: 'length', usage: usageOf(call, 0), moves: 0 } as const
    if (call.sampled.tokenIds.length > 0) await record(deps, execution, call, end)
  } catch (failure) {
    deps.onFailure(failure, execution)
  }
  call.fail(closedError(execution.spec.executionId))
}

function usageOf(call: ModelCall, cachedTokens: number): Usage {
  const { promptTokens } = call.facts
  return { promptTokens, cachedTokens, completionTokens: call.sampled.tokenIds.length }
}
