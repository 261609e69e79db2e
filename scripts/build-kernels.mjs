/** Compiles the AssemblyScript kernels to dist/kernels/engine.wasm; skipped when it is newer than their sources. */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, renameSync, statSync, utimesSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const sources = join(root, 'src/kernels/assembly')
const output = join(root, 'dist/kernels/engine.wasm')
const newest = Math.max(...readdirSync(sources).map((f) => statSync(join(sources, f)).mtimeMs))
if (!existsSync(output) || statSync(output).mtimeMs < newest) {
  mkdirSync(dirname(output), { recursive: true })
  const asc = join(root, 'node_modules/assemblyscript/bin/asc.js')
  const temporary = `${output}.${process.pid}`
  const args = [asc, join(sources, 'index.ts'), '--config', join(sources, 'asconfig.json'), '--outFile', temporary]
  execFileSync(process.execPath, args, { stdio: 'inherit' })
  // Stamped with the age of what was compiled: an edit made meanwhile is seen by the next build.
  utimesSync(temporary, newest / 1000 + 0.001, newest / 1000 + 0.001)
  renameSync(temporary, output)
}
