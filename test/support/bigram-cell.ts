/** @file A cell process with the bigram engine, started as `node --import tsx test/support/bigram-cell.ts`. */
import { runCellProcess } from '../../src/cell/main.ts'
import { BigramEngine } from './bigram-engine.ts'
import type { BigramOptions } from './bigram-engine.ts'

const log = (line: string): void => {
  process.stderr.write(`${line}\n`)
}

try {
  await runCellProcess(
    { stdin: process.stdin, log },
    async (spec) => new BigramEngine(spec as unknown as BigramOptions),
  )
} catch (error) {
  log(error instanceof Error ? error.message : String(error))
  process.exit(1)
}
