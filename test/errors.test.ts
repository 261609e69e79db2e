import { readFileSync, readdirSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { expect, test } from 'vitest'

const root = resolve(import.meta.dirname, '..')
const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && !/\.(?:test|contract)\.ts$/.test(file))
  .map((file) => readFileSync(join(root, 'src', file), 'utf8'))

const codesIn = (pattern: RegExp, texts: readonly string[]): string[] =>
  [...new Set(texts.flatMap((text) => [...text.matchAll(pattern)].map((match) => match[1] ?? '')))].sort()

/** Codes that code throws: string literals. */
const thrown = codesIn(/['"`](E_[A-Z]+(?:_[A-Z]+)*)['"`]/g, sources)
/** Codes that anything in the source speaks of, comments included. */
const mentioned = codesIn(/\b(E_[A-Z]+(?:_[A-Z]+)*)\b/g, sources)
const documented = codesIn(/`(E_[A-Z]+(?:_[A-Z]+)*)`/g, [readFileSync(join(root, 'docs/errors.md'), 'utf8')])

test('every error code of the source has a line in docs/errors.md', () => {
  expect(thrown.length).toBeGreaterThan(20)
  expect([...thrown, ...mentioned].filter((code) => !documented.includes(code))).toEqual([])
})

test('docs/errors.md has no code that is gone', () => {
  expect(documented.filter((code) => !thrown.includes(code))).toEqual([])
})

test('every code has one line of its own', () => {
  const lines = readFileSync(join(root, 'docs/errors.md'), 'utf8').split('\n')
  const heads = lines.flatMap((line) => /^\| `(E_[A-Z_]+)`/.exec(line)?.[1] ?? [])
  expect(heads).toEqual([...new Set(heads)])
  expect(documented.filter((code) => code !== 'E_BUG' && !heads.includes(code))).toEqual([])
})
