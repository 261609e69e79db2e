/**
 * @file Renders only what is new with a chat template made for whole conversations.
 *
 * The new messages are rendered behind a small fixed conversation, whose known text is then cut off:
 * the cost does not depend on the history. All text from outside is hidden by a SpecialGuard, so the
 * special tokens of the result are the template's own.
 */
import { Template } from '@huggingface/jinja'
import { errorText, GyreError } from '../core/errors.ts'
import type { AssistantItem, HarnessItem, ToolCall, ToolSpec } from '../core/items.ts'
import type { BlockContext } from './codec.ts'
import { PYTHON_TEXT_GLOBALS, printLikePython } from './python-text.ts'
import { guardMarker, type SpecialGuard } from './special-guard.ts'

type Message = Readonly<Record<string, unknown>>

const USER: Message = { role: 'user', content: guardMarker('request') }
const REPLY = guardMarker('reply')
const REPLY_MESSAGE: Message = { role: 'assistant', content: REPLY }

const PROBE_TOOL: ToolSpec = { name: 'probe_tool', description: '', parameters: { type: 'object', properties: {} } }

interface RenderOptions {
  readonly tools?: readonly ToolSpec[]
  readonly generationPrompt?: boolean
}

/** Renders must not depend on the clock: a template that asks for the date takes its own fallback. */
const WITHOUT_CLOCK = '{% set strftime_now = undefined_name %}\n'

export class TemplateRenderer {
  /** What stands between a closed turn and the first sampled token of the next. */
  readonly generationPrompt: string
  /** How a turn writes its calls: as a JSON object, or as tags. */
  readonly callFormat: 'json' | 'tags'
  readonly #template: Template
  readonly #guard: SpecialGuard
  readonly #endOfTurn: string
  readonly #globals: Readonly<Record<string, unknown>>
  readonly #afterUser: string
  readonly #verbatimArguments: boolean
  readonly #printsTools: boolean
  /** What may stand before the marker of the stand-in reply. */
  readonly #beforeReply: ReadonlySet<string>

  /** @throws GyreError E_CONFIG_CHAT_TEMPLATE when the template cannot be parsed or does not append. */
  constructor(source: string, guard: SpecialGuard, endOfTurn: string, globals: Readonly<Record<string, unknown>>) {
    this.#guard = guard
    this.#endOfTurn = endOfTurn
    this.#globals = globals
    try {
      this.#template = new Template(WITHOUT_CLOCK + source)
      printLikePython(this.#template)
    } catch (error) {
      throw templateError(`it cannot be parsed: ${errorText(error)}`, error)
    }
    this.#afterUser = this.#render([USER])
    this.generationPrompt = this.#cutPrefix(this.#render([USER], { generationPrompt: true }), this.#afterUser)
    const lastReply = this.#render([USER, REPLY_MESSAGE])
    const earlierReply = this.#render([USER, REPLY_MESSAGE, USER])
    this.#beforeReply = new Set([lastReply, earlierReply].map((text) => splitAtReply(text)[0]))
    this.#verbatimArguments = this.#keepsArgumentText()
    this.#printsTools = this.#probe([USER], { tools: [PROBE_TOOL] }).includes(PROBE_TOOL.name)
    this.callFormat = this.#writesTags() ? 'tags' : 'json'
  }

  /** Text of harness items after `context`; hidden text is still hidden. */
  block(items: readonly HarnessItem[], context: BlockContext): string {
    const tools = items.flatMap((item) => (item.kind === 'tools' ? item.tools : []))
    if (tools.length > 0 && context !== 'start') {
      throw new GyreError('tools can only stand at the start of a path: begin a new root when they change', {
        boundary: 'wire',
        code: 'E_WIRE_TOOLS_MOVED',
      })
    }
    const messages = items.flatMap((item) => this.#message(item))
    if (context === 'start') return items.length === 0 ? '' : this.#opening(messages, tools)
    if (context === 'harness') return this.#cutPrefix(this.#render([USER, ...messages]), this.#afterUser)
    const [before, after] = splitAtReply(this.#render([USER, this.#standInReply(items), ...messages]))
    const closed = after.indexOf(this.#endOfTurn)
    if (!this.#beforeReply.has(before) || closed < 0) throw templateError('new messages change the text before them')
    return after.slice(context === 'turn-closed' ? closed + this.#endOfTurn.length : closed)
  }

  /** Text of an assistant turn from its first sampled token through its end mark; hidden text is still hidden. */
  turn(turn: AssistantItem): string {
    const whole = this.#render([USER, this.#turnMessage(turn)])
    const rest = this.#cutPrefix(whole, this.#afterUser + this.generationPrompt)
    const end = rest.lastIndexOf(this.#endOfTurn)
    if (end < 0) throw templateError(`it does not close a turn with the end-of-sequence token ${this.#endOfTurn}`)
    return rest.slice(0, end + this.#endOfTurn.length)
  }

  /** A policy that is not shown its tools would be trained on another request than the harness sent. */
  #opening(messages: readonly Message[], tools: readonly ToolSpec[]): string {
    const [tool] = tools
    if (tool !== undefined && !this.#printsTools) {
      throw templateError(`it does not print the tools of a request, such as ${tool.name}: give one that does`)
    }
    return this.#render(messages, { tools })
  }

  #message(item: HarnessItem): Message[] {
    if (item.kind === 'tools') return []
    const content = this.#guard.hide(item.text)
    if (item.kind !== 'tool-result') return [{ role: item.kind, content }]
    const name = item.name === '' ? {} : { name: this.#guard.hide(item.name) }
    return [{ role: 'tool', content, tool_call_id: this.#guard.hide(item.callId), ...name }]
  }

  #turnMessage({ text, thinking, toolCalls }: AssistantItem): Message {
    return {
      role: 'assistant',
      content: this.#guard.hide(text),
      ...(thinking === '' ? {} : { reasoning_content: this.#guard.hide(thinking) }),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls.map((call) => this.#callMessage(call)) }),
    }
  }

  #callMessage({ id, name, argumentsText }: ToolCall): Message {
    const args = this.#verbatimArguments
      ? this.#guard.hide(argumentsText)
      : this.#guard.hideAll(parsedOrText(argumentsText))
    return { id, type: 'function', function: { name: this.#guard.hide(name), arguments: args } }
  }

  /** The reply that new items follow: it made a call when they begin with a result. */
  #standInReply(items: readonly HarnessItem[]): Message {
    return items[0]?.kind === 'tool-result' ? callingReply(this.#verbatimArguments ? '{}' : {}) : REPLY_MESSAGE
  }

  /** Templates that print a string of arguments as it is keep them verbatim; the others get an object. */
  #keepsArgumentText(): boolean {
    const probe = '{"probe":  1}'
    return this.#probe([USER, callingReply(probe)]).includes(probe)
  }

  #writesTags(): boolean {
    const args = this.#verbatimArguments ? '{}' : {}
    return this.#probe([USER, callingReply(args)]).includes('<function=tool>')
  }

  /** Empty when the template refuses what is asked. */
  #probe(messages: readonly Message[], options: RenderOptions = {}): string {
    try {
      return this.#render(messages, options)
    } catch (error) {
      if (error instanceof GyreError) return ''
      throw error
    }
  }

  #render(messages: readonly Message[], { tools = [], generationPrompt = false }: RenderOptions = {}): string {
    const functions = tools.map(({ name, description, parameters }) => ({
      type: 'function',
      function: this.#guard.hideAll({ name, description, parameters }),
    }))
    try {
      return this.#template.render({
        ...this.#globals,
        ...PYTHON_TEXT_GLOBALS,
        messages,
        add_generation_prompt: generationPrompt,
        ...(functions.length === 0 ? {} : { tools: functions }),
      })
    } catch (error) {
      throw templateError(`it refuses these messages: ${errorText(error)}`, error)
    }
  }

  #cutPrefix(text: string, prefix: string): string {
    if (!text.startsWith(prefix)) throw templateError('new messages change the text before them')
    return text.slice(prefix.length)
  }
}

function callingReply(args: unknown): Message {
  const call = { id: guardMarker('call'), type: 'function', function: { name: 'tool', arguments: args } }
  return { role: 'assistant', content: REPLY, tool_calls: [call] }
}

function splitAtReply(text: string): readonly [before: string, after: string] {
  const at = text.indexOf(REPLY)
  if (at < 0) throw templateError('it does not print the text of an assistant turn')
  return [text.slice(0, at), text.slice(at + REPLY.length)]
}

function parsedOrText(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function templateError(what: string, cause?: unknown): GyreError {
  return new GyreError(`the chat template cannot be used: ${what}`, {
    boundary: 'config',
    code: 'E_CONFIG_CHAT_TEMPLATE',
    cause,
  })
}
