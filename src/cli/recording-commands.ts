/** @file The verbs of recordings: what they take, and how they are explained. */
import { InvalidArgumentError } from 'commander'
import type { Command } from 'commander'
import type { CliContext } from './context.ts'
import type { RecordOptions } from './record.ts'
import type { ReplayOptions } from './replay.ts'

/** `gyre record` and `gyre replay` */
export function registerRecordings(program: Command, context: CliContext): void {
  program
    .command('record')
    .description('Run a real harness on a scripted scenario, and write what it asked and was answered as a recording.')
    .argument('<harness>', 'name of a harness, with @VERSION for a version of npm')
    .argument('<scenario.yaml>', 'what the policy says and what the harness gets: docs/recordings.md')
    .requiredOption('--out <folder>', 'gets the recording; must be new or empty')
    .option('--tokenizer <folder>', 'tokenizer in Hugging Face layout; bytes by default')
    .option('--replace-over <characters>', 'longer texts of the harness are replaced by filler', wholeNumber, '160')
    .option('--keep <folder>', 'keep the logs and the store of the session here')
    .option('--cache <folder>', 'holds the installed harnesses', '~/.cache/gyre')
    .option('--force', 'write over what is in the folder')
    .option('--json', 'print JSON')
    .addHelpText(
      'after',
      `
The harness is installed on first use and runs in a sandbox of its own; no model and no network is needed. Nothing is
written unless the recording replays to the same tree.

Examples:
  $ gyre record pi test/golden/scenarios/tools.yaml --out test/golden/pi-0.73.1-tools
  $ gyre record claude-code@2.1.332 my.yaml --out my-recording --keep my-session`,
    )
    .action(async (harness: string, file: string, options: RecordOptions) => {
      const { recordScenario } = await import('./record.ts')
      await recordScenario(harness, file, options, context)
    })
  program
    .command('replay')
    .description('Play recordings through gateway, tree and admission, and say what becomes of every sampled token.')
    .argument('<folder...>', 'recordings, or folders that hold some')
    .option('--tokenizer <folder>', 'tokenizer in Hugging Face layout; bytes by default')
    .option('--jmax <n>', 'most trajectories of one execution, or all', wholeNumberOrAll, '5')
    .option('--seed <n>', 'of admission', wholeNumber, '0')
    .option('--assert', 'fail when a sampled token cannot be trained, a context is wrong, or trees cost over 5 % more')
    .option('--json', 'print the figures as JSON, one line a recording')
    .addHelpText(
      'after',
      `
sampled: tokens of branches that survive; trainable: those that carry loss; wrong: calls whose engine saw another
context than the request describes; trees and rows: tokens a trainer gets; distinct: each distinct prefix once.

Examples:
  $ gyre replay test/golden                         every recording in a folder
  $ gyre replay my-recording --json --assert        for a script
  $ gyre replay my-recording --tokenizer MODEL      in the tokens of a real model`,
    )
    .action(async (folders: string[], options: ReplayOptions) => {
      const { replayFolders } = await import('./replay.ts')
      await replayFolders(folders, options, context)
    })
}

function wholeNumber(text: string): string {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError('Give a whole number.')
  return text
}

function wholeNumberOrAll(text: string): string {
  return text === 'all' ? text : wholeNumber(text)
}
