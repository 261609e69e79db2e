import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { expect, test } from 'vitest'
import { configMarkdown } from '../src/config/document.ts'
import { configJsonSchema } from '../src/config/json-schema.ts'
import { profileJsonSchema } from '../src/config/profile.ts'

const root = resolve(import.meta.dirname, '..')
const FENCE = /```ts\n([\s\S]*?)```/g

const snippets = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
  .filter((f) => f.endsWith('.md'))
  .flatMap((f) =>
    [...readFileSync(join(root, 'docs', f), 'utf8').matchAll(FENCE)].map(
      (m, i) => [`${f} #${i + 1}`, m[1] ?? ''] as const,
    ),
  )

test.each([
  ['schema/config.schema.json', `${JSON.stringify(configJsonSchema(), null, 2)}\n`],
  ['schema/profile.schema.json', `${JSON.stringify(profileJsonSchema(), null, 2)}\n`],
  ['docs/config.md', configMarkdown(configJsonSchema())],
])('%s is what the schema says (else run `npm run docs`)', (file, current) => {
  expect(readFileSync(join(root, file), 'utf8')).toBe(current)
})

test.each(snippets)('docs/%s type-checks, runs and prints what it says', (_, code) => {
  const dir = mkdtempSync(join(root, 'test/tmp-docs-'))
  try {
    const file = join(dir, 'snippet.ts')
    writeFileSync(file, code.replace(/'gyre'/g, "'../../src/index.ts'"))
    writeFileSync(
      join(dir, 'tsconfig.json'),
      '{"extends":"../../tsconfig.json","compilerOptions":{"noEmit":true,"noUnusedLocals":false,"rootDir":"../.."},"include":["."]}',
    )
    execFileSync('npx', ['tsc', '-p', dir], { cwd: root, stdio: 'pipe' })
    const out = execFileSync(process.execPath, ['--import', 'tsx', file], { cwd: root, encoding: 'utf8' })
    const said = [...code.matchAll(/^\/\/> ?(.*)$/gm)].map((m) => m[1])
    expect(out.trimEnd().split('\n')).toEqual(said)
  } finally {
    rmSync(dir, { recursive: true })
  }
})
