/** @file OpenAI Responses: answers and errors. Requests are in openai-responses-request.ts. */
import type { FinishReason, Json, ToolCall, Usage } from '../core/items.ts'
import { joinedParts } from './answer-parts.ts'
import type { AnswerHead, AnswerPart, AnswerStream, Dialect, Fault } from './dialect.ts'
import { openAiFaultBody, openAiModelsBody } from './openai-chat.ts'
import { callFields, callItemId, thinkingHandle } from './openai-responses-echo.ts'
import { parseResponsesEnvelope, parseResponsesItem, responsesInput } from './openai-responses-request.ts'
import { sseFrame } from './sse.ts'

type Fields = { readonly [field: string]: Json }
type SpokenPart = Exclude<AnswerPart, { kind: 'tool-call' }>
type ItemStatus = 'in_progress' | 'completed' | 'incomplete'
type Status = ItemStatus | 'failed'

export const openAiResponses: Dialect = {
  name: 'openai-responses',
  conversation: 'input',
  splitsTurns: true,
  listOf: responsesInput,
  parseEnvelope: parseResponsesEnvelope,
  parseElement: parseResponsesItem,
  answerStream: (head) => new ItemStream(head),
  answerBody,
  countBody: (promptTokens) => ({ object: 'response.input_tokens', input_tokens: promptTokens }),
  modelsBody: openAiModelsBody,
  faultBody: openAiFaultBody,
}

/** An item is opened, grows, and is repeated whole at its end; so is every level inside it. */
class ItemStream implements AnswerStream {
  readonly #head: AnswerHead
  /** Finished items. */
  readonly #output: Fields[] = []
  /** What the open item says so far. */
  #open: SpokenPart | undefined
  #sequence = 0

  constructor(head: AnswerHead) {
    this.#head = head
  }

  open(): string {
    return this.#event('response.created', { response: this.#snapshot() }) + this.keepAlive()
  }

  part(part: AnswerPart): string {
    if (part.kind === 'tool-call') return this.#endItem('completed') + this.#call(part.call)
    const start = this.#open?.kind === part.kind ? '' : this.#endItem('completed') + this.#startItem(part.kind)
    this.#open = { kind: part.kind, text: (this.#open?.text ?? '') + part.text }
    return start + this.#delta(part)
  }

  /** Clients take the response of this event for all there is so far. */
  keepAlive(): string {
    return this.#event('response.in_progress', { response: this.#snapshot() })
  }

  close(finishReason: FinishReason, usage: Usage): string {
    const status = statusOf(finishReason)
    const silence = this.#output.length === 0 && this.#open === undefined ? this.part(NOTHING) : ''
    const end = this.#endItem(status)
    const response = responseBody(this.#head, this.#output, status, usage)
    return silence + end + this.#event(endEvent(this.#head, status), { response })
  }

  fail(fault: Fault): string {
    const code = FAILURE_CODE[fault.kind] ?? 'invalid_prompt'
    const error = { code, message: `${fault.message} (${fault.code})` }
    const response = { ...responseBody(this.#head, this.#output, 'failed'), error }
    return this.#event('response.failed', { response })
  }

  #startItem(kind: SpokenPart['kind']): string {
    this.#open = { kind, text: '' }
    const added = this.#added({ ...this.#item('in_progress'), [LEVEL[kind].field]: [] })
    return added + this.#inside(`${LEVEL[kind].part}.added`, { part: LEVEL[kind].body('') })
  }

  #delta({ kind, text }: SpokenPart): string {
    if (text === '') return ''
    return this.#inside(`${LEVEL[kind].text}.delta`, { delta: text, ...LEVEL[kind].extra })
  }

  #endItem(status: ItemStatus): string {
    if (this.#open === undefined) return ''
    const { kind, text } = this.#open
    const said = this.#inside(`${LEVEL[kind].text}.done`, { text, ...LEVEL[kind].extra })
    const part = this.#inside(`${LEVEL[kind].part}.done`, { part: LEVEL[kind].body(text) })
    const item = this.#item(status)
    this.#open = undefined
    return said + part + this.#done(item)
  }

  #call(call: ToolCall): string {
    const item = callItem(this.#head, call, this.#output.length)
    const isFunction = item['type'] === 'function_call'
    const field = isFunction ? 'arguments' : 'input'
    const name = isFunction ? 'response.function_call_arguments' : 'response.custom_tool_call_input'
    const at = { item_id: item['id'] ?? '', output_index: this.#output.length }
    const text = item[field] ?? ''
    return (
      this.#added({ ...item, status: 'in_progress', [field]: '' }) +
      this.#event(`${name}.delta`, { ...at, delta: text }) +
      this.#event(`${name}.done`, { ...at, ...(isFunction ? { name: item['name'] ?? '' } : {}), [field]: text }) +
      this.#done(item)
    )
  }

  #added(item: Fields): string {
    return this.#event('response.output_item.added', { output_index: this.#output.length, item })
  }

  #done(item: Fields): string {
    const output_index = this.#output.push(item) - 1
    return this.#event('response.output_item.done', { output_index, item })
  }

  /** An event about the one part of the open item. */
  #inside(type: string, fields: Fields): string {
    const index = this.#open?.kind === 'thinking' ? { summary_index: 0 } : { content_index: 0 }
    const item_id = this.#item('in_progress')['id'] ?? ''
    return this.#event(type, { item_id, output_index: this.#output.length, ...index, ...fields })
  }

  #item(status: ItemStatus): Fields {
    return spokenItem(this.#head, this.#open ?? NOTHING, this.#output.length, status)
  }

  #snapshot(): Fields {
    const open = this.#open === undefined ? [] : [this.#item('in_progress')]
    return responseBody(this.#head, [...this.#output, ...open], 'in_progress')
  }

  #event(type: string, fields: Fields): string {
    return sseFrame(JSON.stringify({ type, sequence_number: this.#sequence++, ...fields }), type)
  }
}

/** A turn that says nothing is a message without text, so that the client's history keeps its place. */
const NOTHING: SpokenPart = { kind: 'text', text: '' }

/** Where the two kinds of text stand in an item, and in which events. */
const LEVEL = {
  text: {
    field: 'content',
    part: 'response.content_part',
    text: 'response.output_text',
    extra: { logprobs: [] },
    body: (text: string): Fields => ({ type: 'output_text', text, annotations: [], logprobs: [] }),
  },
  thinking: {
    field: 'summary',
    part: 'response.reasoning_summary_part',
    text: 'response.reasoning_summary_text',
    extra: {},
    body: (text: string): Fields => ({ type: 'summary_text', text }),
  },
} as const

/** Clients give up at a code they know, and ask again after `server_error`. */
const FAILURE_CODE: { readonly [kind in Fault['kind']]?: string } = {
  overlong: 'context_length_exceeded',
  internal: 'server_error',
}

function answerBody(head: AnswerHead, parts: readonly AnswerPart[], finishReason: FinishReason, usage: Usage): Json {
  const said = joinedParts(parts)
  const shown = said.length === 0 ? [NOTHING] : said
  const status = statusOf(finishReason)
  const output = shown.map((part, i) => {
    if (part.kind === 'tool-call') return callItem(head, part.call, i)
    return spokenItem(head, part, i, i === shown.length - 1 ? status : 'completed')
  })
  return responseBody(head, output, status, usage)
}

function statusOf(finishReason: FinishReason): 'completed' | 'incomplete' {
  return finishReason === 'length' ? 'incomplete' : 'completed'
}

/**
 * A client that set no bound is not ready to meet one: Codex fails its run at `response.incomplete`, where it would go
 * on with the text it has. It is told by the status in the response alone.
 */
function endEvent({ maxTokens }: AnswerHead, status: 'completed' | 'incomplete'): string {
  return maxTokens === undefined ? 'response.completed' : `response.${status}`
}

function spokenItem(head: AnswerHead, { kind, text }: SpokenPart, index: number, status: ItemStatus): Fields {
  const content = [LEVEL[kind].body(text)]
  const id = `${head.answerId}_${index}`
  if (kind === 'text') return { id: `msg_${id}`, type: 'message', role: 'assistant', status, content }
  const handle = status === 'in_progress' ? {} : { encrypted_content: thinkingHandle(text) }
  return { id: `rs_${id}`, type: 'reasoning', status, summary: content, ...handle }
}

function callItem(head: AnswerHead, call: ToolCall, index: number): Fields {
  const fields = callFields(call, head.tools)
  return { id: callItemId(call, fields.type, `${head.answerId}_${index}`), ...fields, status: 'completed' }
}

/** Says of the request no more than it has to: every event that reports on the whole repeats it. */
function responseBody(head: AnswerHead, output: readonly Json[], status: Status, usage?: Usage): Fields {
  return {
    id: `resp_${head.answerId}`,
    object: 'response',
    created_at: head.createdS,
    model: head.model,
    status,
    output,
    error: null,
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    instructions: null,
    max_output_tokens: head.maxTokens ?? null,
    metadata: {},
    parallel_tool_calls: true,
    previous_response_id: null,
    store: false,
    temperature: null,
    text: { format: { type: 'text' } },
    tool_choice: 'auto',
    tools: [],
    top_p: null,
    truncation: 'disabled',
    usage: usage === undefined ? null : usageBody(usage),
  }
}

/** Thinking is not counted apart. */
function usageBody(usage: Usage): Json {
  return {
    input_tokens: usage.promptTokens,
    input_tokens_details: { cached_tokens: usage.cachedTokens },
    output_tokens: usage.completionTokens,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: usage.promptTokens + usage.completionTokens,
  }
}
