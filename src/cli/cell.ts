import type { Command } from 'commander'
import { createEmbeddedEngine, type EmbeddedEngineOptions } from '../adapters/engine/embedded/embedded-engine.ts'
import { runCellProcess } from '../cell/main.ts'
import type { CliContext } from './context.ts'

/** `gyre cell`: one cell process. Started by a run; its settings come in on standard input. */
export function registerCell(program: Command, context: CliContext): void {
  program.command('cell', { hidden: true }).action(async () => {
    await runCellProcess({ stdin: process.stdin, log: context.warn }, (spec) =>
      createEmbeddedEngine(spec as unknown as EmbeddedEngineOptions),
    )
  })
}
