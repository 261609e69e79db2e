/**
 * @file A small complete ChatCodec whose ids are UTF-8 bytes plus a few special tokens. It needs no tokenizer file
 * and is fast, so tests of everything above the tokenizer use it.
 *
 * Template: OPEN role NEWLINE text CLOSE NEWLINE; a tool call is CALL name NEWLINE arguments END_CALL.
 */
import type { AssistantItem, HarnessItem, Item, ToolSpec } from '../../src/core/items.ts'
import type { BlockContext, ChatCodec, OutputEvent, OutputParser } from '../../src/tokens/codec.ts'

const OPEN = 256
const CLOSE = 257
const CALL = 258
const END_CALL = 259
const THINK = 260
const END_THINK = 261
const SPECIAL_TEXT = new Map([
  [OPEN, '<open>'],
  [CLOSE, '<close>'],
  [CALL, '<call>'],
  [END_CALL, '</call>'],
  [THINK, '<think>'],
  [END_THINK, '</think>'],
])

const encoder = new TextEncoder()

export const byteCodec: ChatCodec = {
  vocabSize: 262,
  stopTokenIds: [CLOSE],
  encodeBlock(items, context) {
    return Int32Array.from([...glue(context), ...renderItems(items)])
  },
  encodeGenerationPrompt() {
    return Int32Array.from([OPEN, ...bytes('assistant\n')])
  },
  encodeTurn(turn) {
    return Int32Array.from(renderTurn(turn))
  },
  encodeSampled(text) {
    const parts = text.split(/(<open>|<close>|<\/?call>|<\/?think>)/)
    const ids = new Map([...SPECIAL_TEXT].map(([id, content]) => [content, id]))
    return Int32Array.from(parts.flatMap((part) => ids.get(part) ?? bytes(part)))
  },
  encodeConversation,
  decode(tokenIds) {
    return decodeIds(Array.from(tokenIds))
  },
  outputParser: () => new ByteOutputParser(),
}

function bytes(text: string): number[] {
  return [...encoder.encode(text)]
}

function glue(context: BlockContext): number[] {
  if (context === 'turn-closed') return bytes('\n')
  return context === 'turn-open' ? [CLOSE, ...bytes('\n')] : []
}

function message(role: string, text: string): number[] {
  return [OPEN, ...bytes(`${role}\n${text}`), CLOSE, ...bytes('\n')]
}

function renderItems(items: readonly HarnessItem[]): number[] {
  const out: number[] = []
  for (let i = 0; i < items.length; i++) {
    const item = items[i] as HarnessItem
    if (item.kind === 'tool-result') {
      const results = [item.text]
      for (let next = items[i + 1]; next?.kind === 'tool-result'; next = items[i + 1]) {
        results.push(next.text)
        i++
      }
      out.push(...message('tool', results.join('\n')))
    } else out.push(...message(item.kind, item.kind === 'tools' ? toolsText(item.tools) : item.text))
  }
  return out
}

function toolsText(tools: readonly ToolSpec[]): string {
  return tools.map((tool) => JSON.stringify(tool)).join('\n')
}

function renderTurn(turn: AssistantItem): number[] {
  const thinking = turn.thinking === '' ? [] : [THINK, ...bytes(turn.thinking), END_THINK]
  const calls = turn.toolCalls.flatMap((call) => [CALL, ...bytes(`${call.name}\n${call.argumentsText}`), END_CALL])
  return [...thinking, ...bytes(turn.text), ...calls, CLOSE]
}

function encodeConversation(items: readonly Item[]): Int32Array {
  let context: BlockContext = 'start'
  const out: number[] = []
  for (const item of items) {
    if (item.kind === 'assistant') {
      out.push(...byteCodec.encodeGenerationPrompt(), ...renderTurn(item))
      context = 'turn-closed'
    } else {
      out.push(...glue(context), ...renderItems([item]))
      context = 'harness'
    }
  }
  return Int32Array.from(out)
}

function decodeIds(ids: readonly number[]): string {
  const decoder = new TextDecoder()
  let text = ''
  for (const id of ids) {
    const special = SPECIAL_TEXT.get(id)
    text += special === undefined ? decoder.decode(Uint8Array.of(id), { stream: true }) : decoder.decode() + special
  }
  return text + decoder.decode()
}

class ByteOutputParser implements OutputParser {
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  #mode: 'text' | 'thinking' | 'call' = 'text'
  #call = ''
  #calls = 0

  push(tokenIds: readonly number[]): readonly OutputEvent[] {
    return merged(tokenIds.flatMap((id) => this.#token(id)))
  }

  finish(): readonly OutputEvent[] {
    const rest = this.#take('')
    if (this.#mode !== 'call') return rest
    this.#mode = 'text'
    return [{ kind: 'text', text: `<call>${this.#call}` }]
  }

  #token(id: number): readonly OutputEvent[] {
    if (id < 256) return this.#take(this.#decoder.decode(Uint8Array.of(id), { stream: true }), false)
    const before = this.#take('')
    if (id === CALL && this.#mode === 'text') {
      this.#mode = 'call'
      this.#call = ''
    } else if (id === END_CALL && this.#mode === 'call') return [...before, this.#endCall()]
    else if (id === THINK && this.#mode === 'text') this.#mode = 'thinking'
    else if (id === END_THINK && this.#mode === 'thinking') this.#mode = 'text'
    return before
  }

  /** Routes decoded text; `flush` also takes what an unfinished UTF-8 sequence holds back. */
  #take(text: string, flush = true): readonly OutputEvent[] {
    const all = text + (flush ? this.#decoder.decode() : '')
    if (all === '') return []
    if (this.#mode === 'call') {
      this.#call += all
      return []
    }
    return [{ kind: this.#mode, text: all }]
  }

  #endCall(): OutputEvent {
    this.#mode = 'text'
    const split = this.#call.indexOf('\n')
    const [name, argumentsText] = [this.#call.slice(0, split), this.#call.slice(split + 1)]
    if (split > 0 && isJsonObject(argumentsText)) {
      return { kind: 'tool-call', index: this.#calls++, name, argumentsText }
    }
    return { kind: 'text', text: `<call>${this.#call}</call>` }
  }
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
  } catch {
    return false
  }
}

function merged(events: readonly OutputEvent[]): readonly OutputEvent[] {
  const out: OutputEvent[] = []
  for (const event of events) {
    const last = out.at(-1)
    if (event.kind !== 'tool-call' && last?.kind === event.kind) {
      out[out.length - 1] = { kind: event.kind, text: last.text + event.text }
    } else out.push(event)
  }
  return out
}
