import { availableParallelism, totalmem } from 'node:os'
import type { Command } from 'commander'
import { formatSize } from '../config/sizes.ts'
import type { CliContext } from './context.ts'
import { type Check, doctorChecks } from './doctor-checks.ts'

/** `gyre doctor` */
export function registerDoctor(program: Command, context: CliContext): void {
  program
    .command('doctor')
    .description('Say what this machine can do, and how to fix what it cannot. Fails when a run could not work.')
    .option('--offline', 'ask nothing of the network')
    .option('--json', 'print JSON')
    .action(async (options: { readonly offline?: true; readonly json?: true }) => {
      const checks = await doctorChecks(context, options.offline === true)
      if (options.json) context.print(JSON.stringify({ cores: availableParallelism(), checks }))
      else context.print(checkLines(checks, context).join('\n'))
      if (checks.some((check) => check.state === 'problem')) process.exitCode = 1
    })
}

function checkLines(checks: readonly Check[], { colors }: CliContext): string[] {
  const marks = { ok: colors.green('ok     '), warning: colors.yellow('warning'), problem: colors.red('problem') }
  const width = Math.max(...checks.map((check) => check.name.length))
  const lines = checks.flatMap(({ name, state, found, fix }) => [
    `${marks[state]}  ${name.padEnd(width)}  ${found}`,
    ...(fix === undefined ? [] : [`${' '.repeat(width + 11)}${colors.bold('fix:')} ${fix}`]),
  ])
  const problems = checks.filter((check) => check.state === 'problem').length
  const verdict = problems === 0 ? 'ready to train' : `${problems} to fix before a run can work`
  return [...lines, '', `${availableParallelism()} cores, ${formatSize(totalmem())} of memory: ${verdict}`]
}
