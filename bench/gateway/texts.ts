/** @file Text for prompts and answers: words of our own documents in random order, the same ones in every run. */
import { readFileSync } from 'node:fs'
import { seededRng } from '../../src/core/rng.ts'

const DOCUMENTS = ['architecture.md', 'errors.md', 'measurements.md']
const words = DOCUMENTS.flatMap((name) =>
  readFileSync(new URL(`../../docs/${name}`, import.meta.url), 'utf8').split(/\s+/),
).filter((word) => /^[\w(]/.test(word))

/** Qwen3 tokens a word of these documents takes, about. */
const TOKENS_PER_WORD = 1.75

/** About `tokens` tokens, different for every seed. */
export function textOf(tokens: number, seed: number): string {
  const rng = seededRng(seed)
  const count = Math.round(tokens / TOKENS_PER_WORD)
  const parts = Array.from({ length: count }, () => words[rng.below(words.length)] ?? '')
  return parts.map((word, i) => (i % 12 === 11 ? `${word}\n` : `${word} `)).join('')
}
