/**
 * @file Remembers the ids of words. Text is split into words before anything is merged, and most words were seen before.
 *
 * Only for the layout that most byte-level tokenizers share: one splitting pattern, then bytes. Any other is encoded
 * as a whole.
 */

export interface WordLayout {
  readonly normalizer?: { readonly type?: string } | null
  readonly pre_tokenizer?: {
    readonly type?: string
    readonly pretokenizers?: readonly {
      readonly type?: string
      readonly pattern?: { readonly Regex?: string }
      readonly behavior?: string
      readonly invert?: boolean
      readonly add_prefix_space?: boolean
      readonly use_regex?: boolean
    }[]
  } | null
}

/** Words kept. [words] */
const KEPT_WORDS = 100_000
/** Longer ones are hardly ever seen twice. [characters] */
const LONGEST_WORD = 32

export class WordEncoder {
  readonly #encode: (word: string) => readonly number[]
  readonly #isNormalized: boolean
  readonly #pattern: RegExp | undefined
  readonly #known = new Map<string, readonly number[]>()

  /** @param encode of text that needs no remembering. */
  constructor(layout: WordLayout, encode: (text: string) => readonly number[]) {
    const { normalizer } = layout
    this.#encode = encode
    this.#isNormalized = normalizer?.type === 'NFC'
    this.#pattern = normalizer === null || this.#isNormalized ? patternOf(layout) : undefined
  }

  encode(text: string): readonly number[] {
    const pattern = this.#pattern
    if (pattern === undefined) return this.#encode(text)
    const normal = this.#isNormalized ? text.normalize('NFC') : text
    const ids: number[] = []
    let end = 0
    for (const { 0: word, index } of normal.matchAll(pattern)) {
      // What the pattern leaves out is split off as well.
      if (index > end) this.#append(normal.slice(end, index), ids)
      this.#append(word, ids)
      end = index + word.length
    }
    if (end < normal.length) this.#append(normal.slice(end), ids)
    return ids
  }

  #append(word: string, ids: number[]): void {
    let known = this.#known.get(word)
    if (known === undefined) {
      known = this.#encode(word)
      if (word.length <= LONGEST_WORD) this.#remember(word, known)
    }
    for (const id of known) ids.push(id)
  }

  #remember(word: string, ids: readonly number[]): void {
    if (this.#known.size >= KEPT_WORDS) this.#known.clear()
    this.#known.set(word, ids)
  }
}

/** The splitting pattern; undefined when the layout is another one, or the pattern is none that runs here. */
function patternOf({ pre_tokenizer: splitting }: WordLayout): RegExp | undefined {
  const [split, bytes, ...more] = splitting?.type === 'Sequence' ? (splitting.pretokenizers ?? []) : []
  if (split === undefined || bytes === undefined || more.length > 0) return undefined
  const isSplit = split.type === 'Split' && split.behavior === 'Isolated' && split.invert === false
  const isBytes = bytes.type === 'ByteLevel' && bytes.add_prefix_space === false && bytes.use_regex === false
  return isSplit && isBytes ? compiled(split.pattern?.Regex ?? '') : undefined
}

function compiled(source: string): RegExp | undefined {
  try {
    return source === '' ? undefined : new RegExp(translated(source), 'gu')
  } catch {
    return undefined
  }
}

/** Classes of white space differ between the languages, and groups without case are missing in older ones. */
function translated(source: string): string {
  return source
    .replaceAll('\\s', '\\p{White_Space}')
    .replaceAll('\\S', '\\P{White_Space}')
    .replaceAll(/\(\?i:([^()[\]\\]*)\)/g, (_, words: string) => `(?:${words.replaceAll(/[a-z]/gi, bothCases)})`)
}

function bothCases(letter: string): string {
  return `[${letter.toLowerCase()}${letter.toUpperCase()}]`
}
