/** @file The verbs of harnesses: what they take, and how they are explained. */
import type { Command } from 'commander'
import type { CliContext } from './context.ts'
import type { HarnessOptions } from './harness.ts'

const CACHE = ['--cache <folder>', 'holds the harnesses (~/.cache/gyre/harness)'] as const

/** `gyre harness` */
export function registerHarness(program: Command, context: CliContext): void {
  const harness = program
    .command('harness')
    .description('The harnesses that gyre can start: which there are, which are installed, and where.')
    .addHelpText(
      'after',
      `
A harness is installed on first use, with npm and without its scripts. Installing it before needs no network later.

Examples:
  $ gyre harness list
  $ gyre harness install qwen-code                the version our recordings were made with
  $ gyre harness install claude-code@2.1.197      another one
  $ gyre harness path pi`,
    )
  harness
    .command('list')
    .description('Name, version, the API it speaks, and its size on disk when it is installed.')
    .option(...CACHE)
    .option('--json', 'print JSON')
    .action(async (options: HarnessOptions) => {
      const { listHarnesses } = await import('./harness.ts')
      listHarnesses(options, context)
    })
  harness
    .command('install')
    .description('Install a harness into the cache. Does nothing when it is there.')
    .argument('<name>', 'name of a harness, with @VERSION for a version of npm')
    .option(...CACHE)
    .option('--json', 'print JSON')
    .action(async (name: string, options: HarnessOptions) => {
      const { installHarness } = await import('./harness.ts')
      await installHarness(name, options, context)
    })
  harness
    .command('path')
    .description('Print the folder of an installed harness; its node_modules holds the package.')
    .argument('<name>', 'name of a harness, with @VERSION for a version of npm')
    .option(...CACHE)
    .option('--json', 'print JSON')
    .action(async (name: string, options: HarnessOptions) => {
      const { printHarnessPath } = await import('./harness.ts')
      printHarnessPath(name, options, context)
    })
  for (const command of harness.commands) command.copyInheritedSettings(program)
}
