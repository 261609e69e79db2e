import type { Command } from 'commander'
import { dryRunReport, derivedNumbers } from '../config/derived.ts'
import { loadConfig, type LoadedConfig } from '../config/load.ts'
import type { RunConfig } from '../config/resolve.ts'
import { configWarnings } from '../scheduler/state.ts'
import { runProfile } from './compose/run-profile.ts'
import { schedulerConfig } from './compose/schedule.ts'
import type { CliContext } from './context.ts'

export interface TrainOptions {
  readonly dryRun?: true
  readonly resume?: true
  readonly fresh?: true
  readonly json?: true
}

/** Starts the run of a loaded config; resolves when it has ended. */
export type StartTraining = (loaded: LoadedConfig, options: TrainOptions, context: CliContext) => Promise<void>

/** `gyre train RUN.yaml [key=value...]` */
export function registerTrain(program: Command, context: CliContext, start: StartTraining): void {
  program
    .command('train')
    .description('Train a policy as a run file says, or go on with a run that was stopped.')
    .argument('<run.yaml>', 'the run file; its fields are in docs/config.md')
    .argument('[overrides...]', 'key=value, dotted, the value in YAML: training.steps=20')
    .option('--dry-run', 'print the resolved config and what follows from it, start nothing')
    .option('--resume', 'go on from the last checkpoint of the run of this name')
    .option('--fresh', 'move an earlier run of this name aside and start anew')
    .option('--json', 'print JSON lines instead of a panel')
    .addHelpText(
      'after',
      `
Examples:
  $ gyre train examples/quickstart.yaml
  $ gyre train examples/quickstart.yaml seed=2 name=second elastic.policy=colocate
  $ gyre train my-run.yaml 'harness.args=[--thinking, "off"]' --dry-run
  $ gyre train my-run.yaml --resume`,
    )
    .action(async (file: string, overrides: string[], options: TrainOptions) => {
      const loaded = loadConfig(file, overrides, context)
      if (options.dryRun) return printDryRun(loaded, options, context)
      for (const warning of loaded.warnings) context.warn(`${context.colors.yellow('warning')} ${warning}`)
      for (const note of notesOn(loaded.config)) context.warn(`${context.colors.dim('note')} ${note}`)
      await start(loaded, options, context)
    })
}

function printDryRun(
  { config, resolvedYaml, warnings }: LoadedConfig,
  options: TrainOptions,
  context: CliContext,
): void {
  // Only to check it: a dry run names every mistake that the run would.
  runProfile(config)
  if (options.json) {
    // The resolved file, not the config: that one holds secrets.
    const notes = notesOn(config)
    context.print(JSON.stringify({ resolvedYaml, derived: derivedNumbers(config), warnings, notes }))
    return
  }
  const notes = [
    ...warnings.map((warning) => `${context.colors.yellow('# warning:')} ${warning}`),
    ...notesOn(config).map((note) => `${context.colors.dim('# note:')} ${note}`),
  ]
  context.print([resolvedYaml.trimEnd(), dryRunReport(config).replaceAll(/^/gm, '# '), ...notes].join('\n'))
}

/** What works but may surprise. */
function notesOn(config: RunConfig): readonly string[] {
  return configWarnings(schedulerConfig(config))
}
