/** @file The verbs of `gyre`: one file each, a `registerX(program, context)`. */
import { Command } from 'commander'
import type { CliContext } from './context.ts'
import { registerDoctor } from './doctor.ts'
import { registerGateway } from './gateway-command.ts'
import { registerHarness } from './harness-command.ts'
import { registerRecordings } from './recording-commands.ts'
import { registerSchema } from './schema.ts'
import { registerStatus } from './status.ts'
import { registerTrain } from './train.ts'
import { type TasksOptions, writeTasks } from './tasks.ts'
import { registerTree } from './tree.ts'
import { packageVersion } from './version.ts'

const EXAMPLES = `
Examples:
  $ gyre doctor                                              what this machine can do
  $ gyre train examples/quickstart.yaml                      train, and watch it
  $ gyre train examples/quickstart.yaml seed=2 name=second   the same with other values
  $ gyre train examples/quickstart.yaml --dry-run            what would run, with the numbers that follow
  $ gyre train examples/quickstart.yaml --resume             go on after a kill
  $ gyre status                                              how the latest run is doing
  $ gyre tree EXECUTION                                      what one execution said, and what was trained
  $ gyre gateway --engine sglang --url URL ...               traces only: any harness, any engine, exact tokens
  $ gyre harness list                                        the harnesses gyre can start
  $ gyre replay test/golden                                  what becomes of every token of recorded sessions

Every field of a run file: docs/config.md. Every error code: docs/errors.md.`

export function buildProgram(context: CliContext): Command {
  const program = new Command('gyre')
    .description('Elastic reinforcement learning for LLM agents, through the harness they already run in.')
    .version(packageVersion(), '-V, --version')
    .addHelpText('after', EXAMPLES)
    .showHelpAfterError('(add --help for the options)')
    .configureOutput({
      writeOut: (text) => context.print(text.trimEnd()),
      writeErr: (text) => context.warn(text.trimEnd()),
      getOutHelpWidth: () => context.width(),
      getErrHelpWidth: () => context.width(),
    })
    .exitOverride()
  registerTrain(program, context, async (...run) => {
    // The engine, the gateway and the harnesses load only when they are needed.
    const { startTraining } = await import('./start-training.ts')
    await startTraining(...run)
  })
  program
    .command('eval')
    .description('Run the held-out tasks with the newest checkpoint of a run.')
    .argument('<run.yaml>', 'the run file the run was started with')
    .argument('[overrides...]', 'key=value, as for train; name=NAME for another run of the same file')
    .option('--json', 'print JSON lines')
    .addHelpText(
      'after',
      `
Examples:
  $ gyre eval examples/quickstart.yaml
  $ gyre eval examples/quickstart.yaml evaluation.executions=4 evaluation.temperature=0 --json`,
    )
    .action(async (file: string, overrides: string[], options: { json?: true }) => {
      const { evaluateRun } = await import('./eval.ts')
      await evaluateRun(file, overrides, options, context)
    })
  program
    .command('tasks')
    .description('Write generated tasks as Harbor folders: to look at, to change, to train on.')
    .argument('<folder>', 'gets the folders train and held-out')
    .option('--train <n>', 'tasks to train on', '64')
    .option('--held-out <n>', 'tasks to evaluate on', '24')
    .option('--min-stops <n>', 'files on the shortest trail', '2')
    .option('--max-stops <n>', 'files on the longest trail', '4')
    .option('--seed <n>', 'another seed, other tasks', '1')
    .option('--json', 'print JSON')
    .action((folder: string, options: TasksOptions) => writeTasks(folder, options, context))
  registerStatus(program, context)
  registerTree(program, context)
  registerGateway(program, context)
  registerHarness(program, context)
  registerRecordings(program, context)
  registerDoctor(program, context)
  registerSchema(program, context)
  program.command('cell', { hidden: true }).action(async () => {
    const { serveCellProcess } = await import('./cell.ts')
    await serveCellProcess(context)
  })
  for (const command of program.commands) command.copyInheritedSettings(program)
  return program
}
