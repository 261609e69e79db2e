/** @file ChatCodec for any byte-level tokenizer and chat template in Hugging Face layout. */
import { GyreError } from '../core/errors.ts'
import type { AssistantItem, HarnessItem, Item, ToolSpec } from '../core/items.ts'
import { alternation } from './alternation.ts'
import { ByteTokenizer } from './byte-tokenizer.ts'
import type { BlockContext, ChatCodec, OutputParser } from './codec.ts'
import { readHermesCall } from './hermes-call.ts'
import { SpecialGuard } from './special-guard.ts'
import { TemplateRenderer } from './template-renderer.ts'
import { TurnParser } from './turn-parser.ts'
import { readXmlCall } from './xml-call.ts'

export interface ChatCodecFiles {
  /** `tokenizer.json`, as text or parsed. */
  readonly tokenizerJson: string | object
  /** `tokenizer_config.json`, as text or parsed. */
  readonly tokenizerConfigJson: string | object
  /** `chat_template.jinja`, for models that keep it apart. */
  readonly chatTemplate?: string
}

/**
 * @throws GyreError E_CONFIG_TOKENIZER when the tokenizer is not byte-level BPE or has no end-of-turn token,
 * E_CONFIG_CHAT_TEMPLATE when the template is missing, faulty, or rewrites earlier messages.
 */
export function createChatCodec(files: ChatCodecFiles): ChatCodec {
  const config = asObject(files.tokenizerConfigJson, 'tokenizer_config.json')
  const tokenizer = new ByteTokenizer(asObject(files.tokenizerJson, 'tokenizer.json'))
  return new HfCodec(tokenizer, files.chatTemplate ?? templateOf(config), specialTokensOf(config))
}

class HfCodec implements ChatCodec {
  readonly vocabSize: number
  readonly stopTokenIds: readonly number[]
  readonly #tokenizer: ByteTokenizer
  readonly #guard: SpecialGuard
  readonly #renderer: TemplateRenderer
  readonly #specials: RegExp

  constructor(tokenizer: ByteTokenizer, template: string, named: Readonly<Record<string, string>>) {
    const endOfTurn = named['eos_token'] ?? ''
    const endId = tokenizer.idOfAdded(endOfTurn)
    if (endId === undefined) {
      throw new GyreError(`eos_token "${endOfTurn}" of tokenizer_config.json is no added token of tokenizer.json`, {
        boundary: 'config',
        code: 'E_CONFIG_TOKENIZER',
      })
    }
    const contents = tokenizer.addedTokens.map((token) => token.content)
    this.#tokenizer = tokenizer
    this.#guard = new SpecialGuard(contents)
    this.#renderer = new TemplateRenderer(template, this.#guard, endOfTurn, named)
    this.#specials = new RegExp(`(${alternation(contents)})`, 'u')
    this.vocabSize = tokenizer.vocabSize
    this.stopTokenIds = [endId]
  }

  encodeBlock(items: readonly HarnessItem[], context: BlockContext): Int32Array {
    return this.#encode(this.#renderer.block(items, context))
  }

  encodeGenerationPrompt(): Int32Array {
    return this.#encode(this.#renderer.generationPrompt)
  }

  encodeTurn(turn: AssistantItem): Int32Array {
    return this.#encode(this.#renderer.turn(turn))
  }

  encodeSampled(text: string): Int32Array {
    return this.#encode(text)
  }

  encodeConversation(items: readonly Item[]): Int32Array {
    const parts: Int32Array[] = []
    let context: BlockContext = 'start'
    let block: HarnessItem[] = []
    for (const item of items) {
      if (item.kind !== 'assistant') block.push(item)
      else {
        parts.push(this.encodeBlock(block, context), this.encodeGenerationPrompt(), this.encodeTurn(item))
        block = []
        context = 'turn-closed'
      }
    }
    if (block.length > 0) parts.push(this.encodeBlock(block, context))
    return concatenated(parts)
  }

  decode(tokenIds: ArrayLike<number>): string {
    return this.#tokenizer.decode(tokenIds)
  }

  outputParser(tools: readonly ToolSpec[]): OutputParser {
    const { generationPrompt: prompt, callFormat } = this.#renderer
    const readCall = callFormat === 'json' ? readHermesCall : (text: string) => readXmlCall(text, tools)
    return new TurnParser(this.#tokenizer, readCall, prompt.lastIndexOf('<think>') > prompt.lastIndexOf('</think>'))
  }

  /** Splits at the special tokens of the template; what stands between them is encoded as text. */
  #encode(rendered: string): Int32Array {
    const parts = rendered.split(this.#specials).map((piece, i): ArrayLike<number> => {
      if (i % 2 === 1) return [this.#tokenizer.idOfAdded(piece) ?? 0]
      return this.#tokenizer.encodeText(this.#guard.restore(piece))
    })
    return concatenated(parts)
  }
}

function concatenated(parts: readonly ArrayLike<number>[]): Int32Array {
  const ids = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let end = 0
  for (const part of parts) {
    ids.set(part, end)
    end += part.length
  }
  return ids
}

function asObject(json: string | object, file: string): Record<string, unknown> {
  let value: unknown = json
  try {
    if (typeof json === 'string') value = JSON.parse(json)
  } catch (error) {
    throw new GyreError(`${file} is not JSON`, { boundary: 'config', code: 'E_CONFIG_TOKENIZER', cause: error })
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw new GyreError(`${file} is not a JSON object`, { boundary: 'config', code: 'E_CONFIG_TOKENIZER' })
}

/** `bos_token`, `eos_token` and the like, which templates may name. */
function specialTokensOf(config: Readonly<Record<string, unknown>>): Record<string, string> {
  const named: Record<string, string> = {}
  for (const [key, value] of Object.entries(config)) {
    if (!key.endsWith('_token')) continue
    const content = typeof value === 'object' && value !== null && 'content' in value ? value.content : value
    if (typeof content === 'string') named[key] = content
  }
  return named
}

/** The template itself, or the one called `default` of a list of named ones. */
function templateOf(config: Readonly<Record<string, unknown>>): string {
  const value = config['chat_template']
  if (typeof value === 'string') return value
  const named: readonly unknown[] = Array.isArray(value) ? value : []
  for (const entry of named) {
    if (typeof entry !== 'object' || entry === null || !('name' in entry) || !('template' in entry)) continue
    if (entry.name === 'default' && typeof entry.template === 'string') return entry.template
  }
  throw new GyreError('tokenizer_config.json has no chat_template: give a chat model, or its chat_template.jinja', {
    boundary: 'config',
    code: 'E_CONFIG_CHAT_TEMPLATE',
  })
}
