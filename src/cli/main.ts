#!/usr/bin/env node
/**
 * @file The `gyre` command.
 *
 * Exit codes: 0 done, 1 failed, 2 asked wrongly. Standard output holds results, standard error everything else.
 */
import { processContext } from './context.ts'
import { reportFailure } from './failure.ts'
import { buildProgram } from './program.ts'

async function main(): Promise<void> {
  const context = processContext()
  // A reader that has seen enough (`gyre status | head`) is no failure.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0)
    throw error
  })
  try {
    await buildProgram(context).parseAsync(process.argv)
  } catch (error) {
    process.exitCode = reportFailure(error, context, process.argv.includes('--json'))
  }
}

await main()
