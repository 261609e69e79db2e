import { Tokenizer } from '@huggingface/tokenizers'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { trainBpe, type SplitPattern } from './bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS } from './chat-template.ts'

const CORPUS = [
  'the quick brown fox jumps over the lazy dog\nthe quick brown fox sleeps\n',
  '{"name": "bash", "arguments": {"command": "ls -la"}}\n{"name": "bash", "arguments": {"command": "cat a.txt"}}\n',
  "it's 1234 tokens, aren't they? aaaaaaa äöü 漢字 👩‍👩‍👧‍👦\r\n\t  x = [1, 2, 3]\n",
]
const options = { vocabSize: 400, specialTokens: CHAT_SPECIAL_TOKENS }
const NASTY = [
  '👩‍👩‍👧‍👦🏴󠁧󠁢󠁥󠁮󠁧󠁿e\u0301\u0000\u0007\u001b[31m\r\n\r\n \t \u00a0\u2028\ufeff',
  'aaaa aaaaa\n\n\naaaaaaaaaaa',
  '\ufeffbom   trailing   ',
  '__proto__ constructor 1 22 "\\" \\u0041',
]

test.each<SplitPattern>(['words', 'lines'])('a tokenizer split by %s gives every text back', (splitPattern) => {
  const tokenizer = new Tokenizer(trainBpe([...CORPUS, ...CORPUS], { ...options, splitPattern }), {})
  const roundTrip = (text: string): string =>
    tokenizer.decode(tokenizer.encode(text).ids, { clean_up_tokenization_spaces: false })
  for (const text of [...CORPUS, ...NASTY]) expect(roundTrip(text)).toBe(text)
  fc.assert(
    fc.property(fc.string({ unit: 'binary', minLength: 1 }), (text) => {
      expect(roundTrip(text)).toBe(text)
    }),
  )
})

test('the order of the corpus does not change the tokenizer', () => {
  const forward = trainBpe(CORPUS, options)
  expect(trainBpe(CORPUS.toReversed(), options)).toEqual(forward)
  expect(trainBpe(CORPUS, options)).toEqual(forward)
})

const firstMerges = (text: string): readonly string[] =>
  trainBpe([text], { vocabSize: 258, specialTokens: [], minFrequency: 1 }).model.merges

test('the first merge joins the most frequent pair, and equal counts go to the smaller ids', () => {
  expect(firstMerges('xyxyxy ab')).toEqual(['x y', 'xy xy'])
  expect(firstMerges('cd\nab')).toEqual(['a b', 'c d'])
})

test('merges match a recount of the whole corpus after every step', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 12 })), (words) => {
      const trained = trainBpe(words, { vocabSize: 264, specialTokens: [], splitPattern: 'lines' }).model.merges
      expect(trained).toEqual(mergesByRecount(words, 8))
    }),
  )
})

/** The definition: count every pair, merge the best everywhere, repeat. */
function mergesByRecount(texts: readonly string[], budget: number): string[] {
  let words = texts.map((text) => Array.from(text))
  const merges: string[] = []
  const ids = new Map(['a', 'b', 'c'].map((token) => [token, token.charCodeAt(0)]))
  const made = new Set<string>()
  while (made.size < budget) {
    const counts = new Map<string, number>()
    for (const word of words) {
      for (let i = 0; i + 1 < word.length; i++) {
        const pair = `${word[i]} ${word[i + 1]}`
        counts.set(pair, (counts.get(pair) ?? 0) + 1)
      }
    }
    const rank = (pair: string): number => {
      const [left = '', right = ''] = pair.split(' ')
      return (ids.get(left) ?? 0) * 1000 + (ids.get(right) ?? 0)
    }
    const best = [...counts].filter(([, n]) => n >= 2).sort((a, b) => b[1] - a[1] || rank(a[0]) - rank(b[0]))[0]?.[0]
    if (best === undefined) break
    merges.push(best)
    const token = best.replace(' ', '')
    if (!ids.has(token)) ids.set(token, 256 + made.size)
    made.add(token)
    words = words.map((word) => mergedWord(word, best, token))
  }
  return merges
}

function mergedWord(word: readonly string[], pair: string, token: string): string[] {
  const out: string[] = []
  for (let i = 0; i < word.length; i++) {
    const joins = i + 1 < word.length && `${word[i]} ${word[i + 1]}` === pair
    out.push(joins ? token : (word[i] ?? ''))
    if (joins) i++
  }
  return out
}

test('the vocabulary is filled up to a multiple of four and special tokens have the last ids', () => {
  const { added_tokens: added, model } = trainBpe(['abc'], { ...options, vocabSize: 266 })
  const size = Object.keys(model.vocab).length + added.length
  expect(size % 4).toBe(0)
  expect(added.slice(0, 9).map((token) => token.content)).toEqual(CHAT_SPECIAL_TOKENS.map((token) => token.content))
  expect(added.map((token) => token.id)).toEqual(added.map((_, i) => size - added.length + i))
})

test('no token is longer than asked for, and special tokens in the corpus teach nothing', () => {
  const { model } = trainBpe(['aaaaaaaaaaaaaaaa<|im_end|><|im_end|><|im_end|>'], { ...options, maxTokenLength: 4 })
  expect(model.merges).toEqual(['a a', 'aa aa'])
})

const spans = (splitPattern: SplitPattern): boolean =>
  Object.keys(trainBpe(CORPUS, { ...options, splitPattern }).model.vocab).some((token) => /\wĠ\w/.test(token))

test('lines let merges span words, words do not', () => {
  expect(spans('lines')).toBe(true)
  expect(spans('words')).toBe(false)
})

test('each line of a text that recurs as it is becomes one token, and the rest is encoded as before', () => {
  const header = 'Tools:\nread: reads a file\n\nwrite: writes a file\r\n<|im_end|>'
  const json = trainBpe([...CORPUS, header], { ...options, splitPattern: 'lines', wholeTexts: [header] })
  const tokenizer = new Tokenizer(json, {})
  const lines = header.replace('<|im_end|>', '')
  expect(tokenizer.encode(lines).ids).toEqual([256, 257, 258])
  expect(tokenizer.decode([256, 257, 258], { clean_up_tokenization_spaces: false })).toBe(lines)
  const without = new Tokenizer(trainBpe(CORPUS, { ...options, vocabSize: 397, splitPattern: 'lines' }), {})
  const tokens = (t: Tokenizer): string[] => CORPUS.flatMap((text) => t.tokenize(text))
  expect(tokens(tokenizer)).toEqual(tokens(without))
})

test('a vocabulary without room for the bytes is refused', () => {
  expect(() => trainBpe(CORPUS, { ...options, vocabSize: 200 })).toThrow(/vocabulary size 200/)
})
