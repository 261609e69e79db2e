import { readFileSync, readdirSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { describe, expect, test } from 'vitest'

/** Who may import whom, lowest layer first. docs/architecture.md prints this table. */
const LAYERS: Record<string, { imports: readonly string[]; packages?: readonly string[]; pure?: true }> = {
  core: { imports: [], pure: true },
  kernels: { imports: [], pure: true },
  wire: { imports: ['core'], packages: ['zod'], pure: true },
  tokens: { imports: ['core'], packages: ['@huggingface/tokenizers', '@huggingface/jinja'], pure: true },
  trajectory: { imports: ['core'], pure: true },
  training: { imports: ['core', 'trajectory'], pure: true },
  scheduler: { imports: ['core'], pure: true },
  ports: { imports: ['core', 'trajectory', 'training'], pure: true },
  telemetry: { imports: ['core'] },
  host: { imports: ['core'] },
  gateway: {
    imports: ['core', 'wire', 'tokens', 'trajectory', 'ports'],
  },
  recording: { imports: ['core', 'tokens', 'trajectory', 'wire', 'ports'], packages: ['zod', 'yaml'] },
  cell: { imports: ['core', 'training', 'ports'], packages: ['undici', 'zod'] },
  run: { imports: ['core', 'scheduler', 'trajectory', 'training', 'ports', 'telemetry', 'tokens'] },
  adapters: {
    imports: ['core', 'kernels', 'wire', 'tokens', 'trajectory', 'training', 'ports', 'host', 'cell'],
    packages: ['libsql', 'kysely', 'smol-toml', 'undici', 'zod'],
  },
  config: { imports: ['core'], packages: ['zod', 'yaml'] },
  cli: { imports: ['*'], packages: ['commander', 'picocolors', 'zod'] },
}
const IMPURE = /\b(?:Date\.now|new Date\(\)|performance\.now|Math\.random|setTimeout|setInterval|process\.env)\b/

const root = resolve(import.meta.dirname, '../src')
const IMPORT =
  /(?:^|\n)\s*(?:import|export)\s[^'"]*?from\s*['"]([^'"]+)['"]|(?:^|\n)\s*import\s*['"]([^'"]+)['"]|\bimport\(\s*['"]([^'"]+)['"]/g

interface Source {
  file: string
  layer: string
  text: string
  specifiers: string[]
}
const sources: Source[] = readdirSync(root, { recursive: true, encoding: 'utf8' })
  .filter((f) => f.endsWith('.ts') && !/\.(test|contract|d)\.ts$/.test(f) && !f.startsWith('kernels/assembly/'))
  .map((file) => {
    const text = readFileSync(join(root, file), 'utf8')
    const specifiers = [...text.matchAll(IMPORT)].map((m) => m[1] ?? m[2] ?? m[3] ?? '')
    return { file, layer: file.split('/')[0] ?? '', text, specifiers }
  })
/** Folders are units; each adapter is a unit of its own, so adapters cannot import each other. */
function unitOf(file: string): string {
  const [layer = '', port = '', name = ''] = file.split('/')
  return layer === 'adapters' ? `adapters/${port}/${name}` : layer
}
const modules = sources.filter((s) => s.file.includes('/'))

describe('architecture', () => {
  test('every folder of src/ is in the table', () => {
    expect(modules.map((s) => s.layer).filter((l) => !(l in LAYERS))).toEqual([])
  })

  test.each(modules.map((s) => [s.file, s] as const))('%s keeps to its layer', (file, { layer, text, specifiers }) => {
    const rule = LAYERS[layer]
    if (rule === undefined) return
    const bad = specifiers.filter((spec) => {
      if (spec.startsWith('.')) {
        const target = relative(root, resolve(root, dirname(file), spec))
        const allowed = rule.imports.includes('*') || rule.imports.includes(target.split('/')[0] ?? '')
        return unitOf(target) !== unitOf(file) && !allowed
      }
      if (spec.startsWith('node:') || builtinModules.includes(spec)) return rule.pure === true
      const name = spec
        .split('/')
        .slice(0, spec.startsWith('@') ? 2 : 1)
        .join('/')
      return !(rule.packages ?? []).includes(name)
    })
    expect(bad, `imports that src/${layer} may not have`).toEqual([])
    if (rule.pure) expect(text.match(IMPURE)?.[0], 'pure layers take clock, rng and env as arguments').toBeUndefined()
  })

  test('there are no import cycles between files', () => {
    const graph = new Map(
      sources.map((s) => [
        s.file,
        s.specifiers.filter((x) => x.startsWith('.')).map((x) => relative(root, resolve(root, dirname(s.file), x))),
      ]),
    )
    const done = new Set<string>()
    const visit = (file: string, path: readonly string[]): string[] | undefined => {
      if (path.includes(file)) return [...path.slice(path.indexOf(file)), file]
      if (done.has(file)) return undefined
      for (const next of graph.get(file) ?? []) {
        const cycle = visit(next, [...path, file])
        if (cycle) return cycle
      }
      done.add(file)
      return undefined
    }
    expect([...graph.keys()].map((f) => visit(f, [])).find((c) => c !== undefined)).toBeUndefined()
  })
})
