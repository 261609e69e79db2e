/** Compiles the AssemblyScript kernels to dist/kernels/*.wasm; skipped when they are newer than their sources. */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const sources = join(root, 'src/kernels/assembly')
const output = join(root, 'dist/kernels/engine.wasm')
if (existsSync(sources)) {
  const newest = Math.max(...readdirSync(sources).map((f) => statSync(join(sources, f)).mtimeMs))
  if (!existsSync(output) || statSync(output).mtimeMs < newest) {
    mkdirSync(dirname(output), { recursive: true })
    const asc = join(root, 'node_modules/assemblyscript/bin/asc.js')
    execFileSync(
      process.execPath,
      [asc, join(sources, 'index.ts'), '--config', join(sources, 'asconfig.json'), '--outFile', output],
      {
        stdio: 'inherit',
      },
    )
  }
}
