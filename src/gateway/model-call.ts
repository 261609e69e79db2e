/** @file One model call as everything that waits for it sees it: a growing list of parts, then an end. */
import { invariant } from '../core/errors.ts'
import type { CallId } from '../core/ids.ts'
import type { AssistantItem, FinishReason, ToolCall, ToolSpec, Usage } from '../core/items.ts'
import type { ChatCodec, OutputEvent, OutputParser } from '../tokens/codec.ts'
import type { LeafRole } from '../trajectory/node.ts'
import type { AnswerPart } from '../wire/dialect.ts'
import type { Prompt } from './prompt.ts'
import type { Sampled } from './sampler.ts'

export interface ModelCallFacts {
  readonly callId: CallId
  /** Counts the calls of the execution by arrival, from 0. The ids of served tool calls hold it. */
  readonly number: number
  readonly dialect: string
  readonly thread: string
  readonly role: LeafRole
  readonly requestHash: string
  /** Equal for requests that differ only in how long an answer they want. */
  readonly contextHash: string
  /** [tokens] */
  readonly promptTokens: number
  /** True when an equal request was being answered to a client that waited on: one more sample, not a retry. */
  readonly isTwin: boolean
  readonly tools: readonly ToolSpec[]
  readonly startedAtMs: number
}

export type CallState =
  | { readonly kind: 'running' }
  | { readonly kind: 'answered'; readonly finishReason: FinishReason; readonly usage: Usage; readonly atMs: number }
  | { readonly kind: 'failed'; readonly error: unknown }

export class ModelCall {
  readonly facts: ModelCallFacts
  readonly sampled: Sampled = { tokenIds: [], logprobs: [], policyVersions: [] }
  /** True once a later request continued from the answer. */
  isUsed = false
  /** True when a client left before it had the whole answer. */
  wasLeft = false
  readonly #parser: OutputParser
  readonly #controller = new AbortController()
  readonly #parts: AnswerPart[] = []
  readonly #waiters = new Set<() => void>()
  readonly #onDeserted = new Set<() => void>()
  readonly #abandonMs: number
  #prompt: Prompt | undefined
  #state: CallState = { kind: 'running' }
  #readers = 0
  #abandonTimer: NodeJS.Timeout | undefined

  constructor(facts: ModelCallFacts, prompt: Prompt, codec: ChatCodec, abandonMs: number) {
    this.facts = facts
    this.#prompt = prompt
    this.#parser = codec.outputParser(facts.tools)
    this.#abandonMs = abandonMs
  }

  /** Aborts when nobody wants the answer any more. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Held until the call has ended: a whole context is too much to keep for a retry that may come. */
  get prompt(): Prompt {
    invariant(this.#prompt !== undefined, `the prompt of call ${this.facts.callId} is used before its end`)
    return this.#prompt
  }

  get state(): CallState {
    return this.#state
  }

  get parts(): readonly AnswerPart[] {
    return this.#parts
  }

  /** What the parts say, as one turn. */
  get turn(): AssistantItem {
    let [thinking, text] = ['', '']
    const toolCalls: ToolCall[] = []
    for (const part of this.#parts) {
      if (part.kind === 'tool-call') toolCalls.push(part.call)
      else if (part.kind === 'text') text += part.text
      else thinking += part.text
    }
    return { kind: 'assistant', thinking, text, toolCalls }
  }

  push(tokenIds: readonly number[]): void {
    this.#take(this.#parser.push(tokenIds))
  }

  /** Everything was sampled: hands out what the parser held back. */
  flush(): void {
    this.#take(this.#parser.finish())
  }

  answer(finishReason: FinishReason, usage: Usage, atMs: number): void {
    this.#end({ kind: 'answered', finishReason, usage, atMs })
  }

  fail(error: unknown): void {
    this.#end({ kind: 'failed', error })
  }

  abort(reason: unknown): void {
    if (this.#state.kind === 'running') this.#controller.abort(reason)
  }

  /** Counts a client that waits. The function it returns takes the client off again, and must be called once. */
  attach(): () => void {
    this.#readers++
    clearTimeout(this.#abandonTimer)
    return () => {
      this.#readers--
      if (this.#state.kind !== 'running') return
      this.wasLeft = true
      if (this.#readers > 0) return
      for (const done of this.#onDeserted) done()
      this.#abandonTimer = setTimeout(() => this.abort('the client hung up'), this.#abandonMs)
    }
  }

  /** True while a client waits for the answer. */
  get isWaitedFor(): boolean {
    return this.#readers > 0
  }

  /** Resolves when no client waits any more, the call has ended, or `timeoutMs` is over. */
  async deserted(timeoutMs: number): Promise<void> {
    if (!this.isWaitedFor || this.#state.kind !== 'running') return
    await new Promise<void>((resolve) => {
      const done = (): void => {
        clearTimeout(timer)
        this.#onDeserted.delete(done)
        resolve()
      }
      const timer = setTimeout(done, timeoutMs)
      this.#onDeserted.add(done)
    })
  }

  /** Calls back whenever there are more parts or the call has ended. The function it returns ends that. */
  watch(onProgress: () => void): () => void {
    this.#waiters.add(onProgress)
    return () => this.#waiters.delete(onProgress)
  }

  /** Resolves true when there are more than `seen` parts or the call has ended, false after `timeoutMs`. */
  async progress(seen: number, timeoutMs: number): Promise<boolean> {
    if (this.#parts.length > seen || this.#state.kind !== 'running') return true
    return new Promise((resolve) => {
      const done = (isProgress: boolean): void => {
        clearTimeout(timer)
        this.#waiters.delete(wake)
        resolve(isProgress)
      }
      const wake = (): void => done(true)
      const timer = setTimeout(() => done(false), timeoutMs)
      this.#waiters.add(wake)
    })
  }

  #take(events: readonly OutputEvent[]): void {
    for (const event of events) this.#parts.push(this.#part(event))
    if (events.length > 0) this.#wake()
  }

  #part(event: OutputEvent): AnswerPart {
    if (event.kind !== 'tool-call') return event
    const { index, name, argumentsText } = event
    return { kind: 'tool-call', call: { id: `call_${this.facts.number}_${index}`, name, argumentsText } }
  }

  #end(state: CallState): void {
    clearTimeout(this.#abandonTimer)
    this.#prompt = undefined
    this.#state = state
    for (const done of this.#onDeserted) done()
    this.#wake()
  }

  #wake(): void {
    for (const wake of this.#waiters) wake()
  }
}
