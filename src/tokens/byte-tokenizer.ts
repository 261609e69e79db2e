/** @file A byte-level BPE tokenizer in Hugging Face layout, split into what is safe for outside text and what is not. */
import { Tokenizer } from '@huggingface/tokenizers'
import { GyreError } from '../core/errors.ts'
import { bytesOfToken } from './byte-alphabet.ts'
import { WordEncoder } from './word-encoder.ts'
import type { WordLayout } from './word-encoder.ts'

export interface AddedToken {
  readonly id: number
  readonly content: string
  /** Hidden from readers of the text. */
  readonly special: boolean
}

interface TokenizerLayout extends WordLayout {
  readonly added_tokens?: readonly { id: number; content: string; special?: boolean }[]
  readonly decoder?: { readonly type?: string; readonly decoders?: readonly { readonly type?: string }[] } | null
  readonly model: { readonly vocab: Readonly<Record<string, number>> }
}

/** Pieces of at least this many characters are worth caching; the tokenizer caches words itself. */
const CACHED_PIECE = 64
const CACHE_CHARS = 4_000_000

export class ByteTokenizer {
  /** One more than the highest id. */
  readonly vocabSize: number
  readonly addedTokens: readonly AddedToken[]
  readonly #plain: Tokenizer
  readonly #words: WordEncoder
  readonly #addedById: ReadonlyMap<number, AddedToken>
  readonly #addedIds: ReadonlyMap<string, number>
  readonly #bytes: (Uint8Array | undefined)[] = []
  readonly #cache = new Map<string, Int32Array>()
  #cachedChars = 0

  /** @throws GyreError E_CONFIG_TOKENIZER when it is not a byte-level BPE tokenizer. */
  constructor(tokenizerJson: object) {
    const layout = checkedLayout(tokenizerJson)
    this.addedTokens = (layout.added_tokens ?? []).map(({ id, content, special = false }) => ({ id, content, special }))
    this.#addedById = new Map(this.addedTokens.map((token) => [token.id, token]))
    this.#addedIds = new Map(this.addedTokens.map((token) => [token.content, token.id]))
    let highest = -1
    for (const { id } of this.addedTokens) highest = Math.max(highest, id)
    for (const id of Object.values(layout.model.vocab)) highest = Math.max(highest, id)
    this.vocabSize = highest + 1
    // Without its added tokens the tokenizer has no way to produce one, whatever the text says.
    const vocab = Object.entries(layout.model.vocab).filter(([token]) => !this.#addedIds.has(token))
    const model = { ...layout.model, vocab: Object.fromEntries(vocab) }
    this.#plain = new Tokenizer({ ...layout, added_tokens: [], post_processor: null, model }, {})
    this.#words = new WordEncoder(layout, (word) => this.#plain.encode(word, { add_special_tokens: false }).ids)
  }

  addedToken(id: number): AddedToken | undefined {
    return this.#addedById.get(id)
  }

  idOfAdded(content: string): number | undefined {
    return this.#addedIds.get(content)
  }

  /** Ids of text as text: a special token spelled in it stays ordinary characters. */
  encodeText(text: string): ArrayLike<number> {
    if (text === '') return []
    if (text.length < CACHED_PIECE) return this.#encode(text)
    const cached = this.#cache.get(text)
    if (cached !== undefined) {
      this.#cache.delete(text)
      this.#cache.set(text, cached)
      return cached
    }
    const ids = Int32Array.from(this.#encode(text))
    this.#remember(text, ids)
    return ids
  }

  #encode(text: string): readonly number[] {
    return this.#words.encode(text)
  }

  #remember(text: string, ids: Int32Array): void {
    if (text.length > CACHE_CHARS / 4) return
    this.#cache.set(text, ids)
    this.#cachedChars += text.length
    for (const oldest of this.#cache.keys()) {
      if (this.#cachedChars <= CACHE_CHARS) break
      this.#cache.delete(oldest)
      this.#cachedChars -= oldest.length
    }
  }

  /** UTF-8 bytes of one token; empty for an id that stands for nothing. */
  bytesOf(id: number): Uint8Array {
    const known = this.#bytes[id]
    if (known !== undefined) return known
    const added = this.#addedById.get(id)
    const token = this.#plain.id_to_token(id)
    const bytes = added === undefined ? bytesOfToken(token ?? '') : new TextEncoder().encode(added.content)
    return (this.#bytes[id] = bytes ?? new Uint8Array())
  }

  /** Text of the ids, special tokens included; bytes that are not UTF-8 become U+FFFD. */
  decode(tokenIds: ArrayLike<number>): string {
    const parts = Array.from(tokenIds, (id) => this.bytesOf(id))
    const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
    let end = 0
    for (const part of parts) {
      bytes.set(part, end)
      end += part.length
    }
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes)
  }
}

function checkedLayout(tokenizerJson: object): TokenizerLayout {
  const layout = tokenizerJson as Partial<TokenizerLayout>
  const decoders = [layout.decoder, ...(layout.decoder?.decoders ?? [])]
  if (typeof layout.model?.vocab !== 'object' || !decoders.some((decoder) => decoder?.type === 'ByteLevel')) {
    throw new GyreError(
      'the tokenizer is not a byte-level BPE tokenizer: give a tokenizer.json with a ByteLevel decoder',
      {
        boundary: 'config',
        code: 'E_CONFIG_TOKENIZER',
      },
    )
  }
  return layout as TokenizerLayout
}
