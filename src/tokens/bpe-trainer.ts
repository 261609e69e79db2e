/**
 * @file Trains a byte-level BPE tokenizer (Sennrich et al., arXiv 1508.07909, over bytes).
 *
 * The result depends only on the multiset of pre-split words and the options: equal counts are
 * broken by the smaller pair of ids. Merges are found incrementally: every pair keeps the list of
 * places where it stands, so a merge costs its own occurrences and not a pass over the corpus.
 */
import { GyreError } from '../core/errors.ts'
import { alternation } from './alternation.ts'
import { BYTE_CHARS, tokenOfText } from './byte-alphabet.ts'
import { MaxPairHeap } from './pair-heap.ts'

/**
 * `words`: merges stay within a word (with its leading space), a number, a run of punctuation or of white space.
 * `lines`: merges may span words within one line, so text that repeats as it is (tool schemas, a fixed
 * system prompt, a frequent call) becomes few tokens.
 */
export type SplitPattern = 'words' | 'lines'

export interface SpecialToken {
  readonly content: string
  /** True for tokens that `skip_special_tokens` hides; false for markup that belongs to the text of a turn. */
  readonly special: boolean
}

export interface TrainBpeOptions {
  /** Ids in all: 256 bytes, merges and special tokens; filled up to a multiple of 4 by reserved tokens. */
  readonly vocabSize: number
  readonly specialTokens: readonly SpecialToken[]
  /** Defaults to `words`. */
  readonly splitPattern?: SplitPattern
  /** Longest token. [bytes] Defaults to 32 for words and 256 for lines. */
  readonly maxTokenLength?: number
  /** A pair seen less often is never merged. Defaults to 2. */
  readonly minFrequency?: number
  /**
   * Texts that recur as they are, such as a rendered header of tools and system prompt. Each of their words
   * (with `lines`: each of their lines) becomes one id, without the merges that would lead to it.
   */
  readonly wholeTexts?: readonly string[]
}

interface AddedTokenJson {
  readonly id: number
  readonly content: string
  readonly single_word: boolean
  readonly lstrip: boolean
  readonly rstrip: boolean
  readonly normalized: boolean
  readonly special: boolean
}

/** A complete `tokenizer.json`. */
export interface TokenizerJson {
  readonly version: '1.0'
  readonly truncation: null
  readonly padding: null
  readonly added_tokens: readonly AddedTokenJson[]
  readonly normalizer: null
  readonly pre_tokenizer: object
  readonly post_processor: null
  readonly decoder: object
  readonly model: {
    readonly type: 'BPE'
    readonly vocab: Readonly<Record<string, number>>
    readonly merges: readonly string[]
    readonly [option: string]: unknown
  }
}

/** Every pattern matches any text without gaps. They read the same in JavaScript and in Oniguruma. */
const SPLIT_REGEX: Record<SplitPattern, string> = {
  words: String.raw`'(?:[sdmt]|ll|re|ve)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
  lines: String.raw`[^\r\n]*[\r\n]+|[^\r\n]+`,
}
const DEFAULT_MAX_LENGTH: Record<SplitPattern, number> = { words: 32, lines: 256 }

/**
 * Trains on `corpus`. Special tokens that occur in it are cut out first.
 * @throws GyreError E_CONFIG_VOCABULARY when vocabSize leaves no room for the bytes, the whole words and the special tokens.
 */
export function trainBpe(corpus: Iterable<string>, options: TrainBpeOptions): TokenizerJson {
  const { vocabSize, specialTokens, splitPattern = 'words', minFrequency = 2, wholeTexts = [] } = options
  const wholeWords = [...countWords(wholeTexts, splitPattern, specialTokens).keys()]
  const whole = wholeWords.map(tokenOfText).filter((token) => token.length > 1)
  const least = BYTE_CHARS.length + whole.length + specialTokens.length
  if (!Number.isInteger(vocabSize) || vocabSize < least || vocabSize > MAX_VOCABULARY) {
    throw new GyreError(`vocabulary size ${vocabSize} must be an integer from ${least} to ${MAX_VOCABULARY}`, {
      boundary: 'config',
      code: 'E_CONFIG_VOCABULARY',
    })
  }
  const words = countWords(corpus, splitPattern, specialTokens)
  for (const word of wholeWords) words.delete(word)
  const maxLength = options.maxTokenLength ?? DEFAULT_MAX_LENGTH[splitPattern]
  const trainer = new MergeTrainer(words, [...BYTE_CHARS, ...whole], maxLength, Math.max(1, minFrequency))
  const { tokens, merges } = trainer.run(vocabSize - least)
  return tokenizerJson(tokens, merges, specialTokens, splitPattern)
}

function countWords(
  corpus: Iterable<string>,
  splitPattern: SplitPattern,
  specialTokens: readonly SpecialToken[],
): Map<string, number> {
  const counts = new Map<string, number>()
  const split = new RegExp(SPLIT_REGEX[splitPattern], 'gu')
  const cut = specialTokens.length === 0 ? undefined : new RegExp(alternation(specialTokens.map((t) => t.content)), 'u')
  for (const text of corpus) {
    for (const part of cut === undefined ? [text] : text.split(cut)) {
      for (const word of part.match(split) ?? []) counts.set(word, (counts.get(word) ?? 0) + 1)
    }
  }
  return counts
}

/** Ids are below this, so that a pair of them is one exact number. */
const MAX_VOCABULARY = 1 << 20
const NONE = -1

interface Pair {
  /** Weighted count of the places where the pair stands now. */
  count: number
  /** Every place where it was ever formed; stale ones are recognized by the symbols there. */
  readonly places: number[]
}

class MergeTrainer {
  /** [symbols of all distinct words] id at each place; NONE where a symbol was merged into its left neighbor. */
  readonly #symbols: Int32Array
  readonly #previous: Int32Array
  readonly #next: Int32Array
  readonly #weights: Float64Array
  readonly #pairs = new Map<number, Pair>()
  readonly #heap = new MaxPairHeap()
  readonly #tokens: string[]
  readonly #idOfToken: Map<string, number>
  readonly #maxLength: number
  readonly #minFrequency: number
  /** Pairs whose count grew in the merge at hand. */
  readonly #grown = new Set<number>()

  /** @param tokens The 256 bytes by value, then tokens that no merge has to make. */
  constructor(words: ReadonlyMap<string, number>, tokens: readonly string[], maxLength: number, minFrequency: number) {
    this.#tokens = [...tokens]
    this.#idOfToken = new Map(tokens.map((token, id) => [token, id]))
    this.#maxLength = maxLength
    this.#minFrequency = minFrequency
    const encoder = new TextEncoder()
    const encoded = [...words].map(([word, count]) => ({ bytes: encoder.encode(word), count }))
    const size = encoded.reduce((sum, word) => sum + word.bytes.length, 0)
    this.#symbols = new Int32Array(size)
    this.#previous = new Int32Array(size)
    this.#next = new Int32Array(size)
    this.#weights = new Float64Array(size)
    let place = 0
    for (const { bytes, count } of encoded) {
      for (let i = 0; i < bytes.length; i++, place++) {
        this.#symbols[place] = bytes[i] as number
        this.#previous[place] = i === 0 ? NONE : place - 1
        this.#next[place] = i === bytes.length - 1 ? NONE : place + 1
        this.#weights[place] = count
      }
    }
    for (let p = 0; p < size; p++) this.#addPair(p)
    this.#pushGrown()
  }

  run(mergeBudget: number): { tokens: readonly string[]; merges: readonly string[] } {
    const merges: string[] = []
    const limit = this.#tokens.length + mergeBudget
    while (this.#tokens.length < limit) {
      const best = this.#popBest()
      if (best === undefined) break
      const [left, right] = [Math.floor(best / MAX_VOCABULARY), best % MAX_VOCABULARY]
      merges.push(`${this.#tokens[left]} ${this.#tokens[right]}`)
      this.#merge(left, right, this.#internMerged(left, right))
    }
    return { tokens: this.#tokens, merges }
  }

  /** Two different merges may spell the same token; it keeps its first id. */
  #internMerged(left: number, right: number): number {
    const token = `${this.#tokens[left]}${this.#tokens[right]}`
    const known = this.#idOfToken.get(token)
    if (known !== undefined) return known
    this.#tokens.push(token)
    this.#idOfToken.set(token, this.#tokens.length - 1)
    return this.#tokens.length - 1
  }

  /** The most frequent pair whose heap entry is up to date; the heap may hold older, larger counts. */
  #popBest(): number | undefined {
    for (;;) {
      const top = this.#heap.pop()
      if (top === undefined || top.count < this.#minFrequency) return undefined
      const count = this.#pairs.get(top.key)?.count ?? 0
      if (count === top.count) return top.key
      if (count > 0 && count < top.count) this.#heap.push(count, top.key)
    }
  }

  #merge(left: number, right: number, merged: number): void {
    const key = left * MAX_VOCABULARY + right
    const pair = this.#pairs.get(key)
    if (pair === undefined) return
    this.#pairs.delete(key)
    // In a run such as "aaa" the leftmost pair wins, as it does when the text is encoded.
    if (left === right) pair.places.sort((a, b) => a - b)
    for (const place of pair.places) {
      const second = this.#next[place] as number
      if (this.#symbols[place] !== left || second === NONE || this.#symbols[second] !== right) continue
      const before = this.#previous[place] as number
      const after = this.#next[second] as number
      if (before !== NONE) this.#removePair(before)
      if (after !== NONE) this.#removePair(second)
      this.#symbols[place] = merged
      this.#symbols[second] = NONE
      this.#next[place] = after
      if (after !== NONE) this.#previous[after] = place
      if (before !== NONE) this.#addPair(before)
      this.#addPair(place)
    }
    this.#pushGrown()
  }

  #keyAt(place: number): number {
    const second = this.#next[place] as number
    return (this.#symbols[place] as number) * MAX_VOCABULARY + (this.#symbols[second] as number)
  }

  #removePair(place: number): void {
    const pair = this.#pairs.get(this.#keyAt(place))
    if (pair !== undefined) pair.count -= this.#weights[place] as number
  }

  #addPair(place: number): void {
    const second = this.#next[place] as number
    if (second === NONE) return
    const left = this.#tokens[this.#symbols[place] as number] as string
    const right = this.#tokens[this.#symbols[second] as number] as string
    if (left.length + right.length > this.#maxLength) return
    const key = this.#keyAt(place)
    const pair = this.#pairs.get(key)
    if (pair === undefined) this.#pairs.set(key, { count: this.#weights[place] as number, places: [place] })
    else {
      pair.count += this.#weights[place] as number
      pair.places.push(place)
    }
    this.#grown.add(key)
  }

  #pushGrown(): void {
    for (const key of this.#grown) {
      const count = this.#pairs.get(key)?.count ?? 0
      if (count > 0) this.#heap.push(count, key)
    }
    this.#grown.clear()
  }
}

function tokenizerJson(
  tokens: readonly string[],
  merges: readonly string[],
  specialTokens: readonly SpecialToken[],
  splitPattern: SplitPattern,
): TokenizerJson {
  const missing = (4 - ((tokens.length + specialTokens.length) % 4)) % 4
  const reserved = Array.from({ length: missing }, (_, i) => ({ content: `<|reserved_${i}|>`, special: true }))
  const added = [...specialTokens, ...reserved].map(({ content, special }, i) => ({
    id: tokens.length + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special,
  }))
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: SPLIT_REGEX[splitPattern] }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      // A word that is a token is taken as it is: whole words have no merges of their own.
      ignore_merges: true,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges,
    },
  }
}
