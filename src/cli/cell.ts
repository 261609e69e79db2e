import { createEmbeddedEngine, type EmbeddedEngineOptions } from '../adapters/engine/embedded/embedded-engine.ts'
import { runCellProcess } from '../cell/main.ts'
import type { CliContext } from './context.ts'

/** `gyre cell`: one cell process. A run starts it; its settings come in on standard input. */
export function serveCellProcess(context: CliContext): Promise<void> {
  return runCellProcess({ stdin: process.stdin, log: context.warn }, (spec) =>
    createEmbeddedEngine(spec as unknown as EmbeddedEngineOptions),
  )
}
