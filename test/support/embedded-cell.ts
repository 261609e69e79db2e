/** @file A cell process with the embedded engine, started as `node --import tsx test/support/embedded-cell.ts`. */
import { createEmbeddedEngine } from '../../src/adapters/engine/embedded/embedded-engine.ts'
import type { EmbeddedEngineOptions } from '../../src/adapters/engine/embedded/embedded-engine.ts'
import { runCellProcess } from '../../src/cell/main.ts'

const log = (line: string): void => {
  process.stderr.write(`${line}\n`)
}

try {
  await runCellProcess({ stdin: process.stdin, log }, (spec) =>
    createEmbeddedEngine(spec as unknown as EmbeddedEngineOptions),
  )
} catch (error) {
  log(error instanceof Error ? error.message : String(error))
  process.exit(1)
}
