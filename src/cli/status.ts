import { existsSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import type { Command } from 'commander'
import { isLedgerInUse } from '../adapters/store/sqlite/connection.ts'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import type { ExecutionRow, Store } from '../ports/store.ts'
import { type ParkedTask, parkedTasks } from '../run/parked-tasks.ts'
import { type LivePicture, readLiveFile } from '../telemetry/live-file.ts'
import { panelRows } from '../telemetry/panel.ts'
import { readStepMetrics, type StepMetrics } from '../telemetry/run-log.ts'
import { sparkline } from '../telemetry/sparkline.ts'
import type { CliContext } from './context.ts'
import { findRun, LEDGER, readRunConfig } from './run-folder.ts'

interface StatusOptions {
  readonly runs: string
  readonly executions?: true
  readonly json?: true
}

interface RunStatus {
  readonly run: string
  readonly folder: string
  /** Whether a process holds the ledger at the moment. */
  readonly isRunning: boolean
  readonly step: number
  readonly totalSteps: number | undefined
  readonly checkpointStep: number
  readonly policyVersion: number
  readonly groups: Readonly<Record<string, number>>
  readonly executions: Readonly<Record<string, number>>
  readonly errors: Readonly<Record<string, number>>
  /** Tasks that are not dealt any more, and why. */
  readonly parkedTasks: readonly ParkedTask[]
  readonly steps: readonly StepMetrics[]
  /** The last picture of the elastic loop: cells, engines beside them, phi, transfers. */
  readonly live: LivePicture | undefined
  /** summary.json of a finished run. */
  readonly summary: unknown
}

/** `gyre status [RUN]` */
export function registerStatus(program: Command, context: CliContext): void {
  program
    .command('status')
    .description('Say how a run is doing, while it runs or after.')
    .argument('[run]', 'name or folder of a run; the latest by default')
    .option('--runs <folder>', 'folder of run folders', 'runs')
    .option('--executions', 'also list every execution')
    .option('--json', 'print JSON')
    .action((run: string | undefined, options: StatusOptions) => {
      const folder = findRun(run, options.runs, context)
      const store = openSqliteStore(join(folder, LEDGER), { access: 'read' })
      try {
        const status = statusOf(folder, store, context)
        const rows = options.executions ? store.executions() : []
        if (options.json) context.print(JSON.stringify(options.executions ? { ...status, rows } : status))
        else context.print([...statusLines(status, context), ...rows.map(executionLine)].join('\n'))
      } finally {
        store.close()
      }
    })
}

function statusOf(folder: string, store: Store, context: CliContext): RunStatus {
  const executions = store.executions()
  const checkpoint = store.latestCheckpoint()
  const logged = readStepMetrics(folder)
  // The ledger holds what a checkpoint holds; the log also has the steps since.
  const steps = logged.length > 0 ? logged : store.steps().map(({ step, metrics }) => ({ ...metrics, step }))
  const summaryFile = join(folder, 'summary.json')
  return {
    run: basename(folder),
    folder,
    isRunning: isLedgerInUse(join(folder, LEDGER)),
    step: steps.at(-1)?.step ?? 0,
    totalSteps: readRunConfig(folder, context)?.training.steps,
    checkpointStep: checkpoint?.step ?? 0,
    policyVersion: checkpoint?.policyVersion ?? 0,
    groups: tally(store.groups().map((group) => group.state)),
    executions: tally(executions.map((row) => row.outcome ?? row.state)),
    errors: tally(executions.flatMap((row) => row.errorCode ?? [])),
    parkedTasks: parkedTasks(store),
    steps,
    live: readLiveFile(folder),
    summary: existsSync(summaryFile) ? (JSON.parse(readFileSync(summaryFile, 'utf8')) as unknown) : undefined,
  }
}

function statusLines(status: RunStatus, { colors, width }: CliContext): string[] {
  const state = status.isRunning ? colors.green('running') : status.summary === undefined ? 'stopped' : 'finished'
  const rewards = status.steps.flatMap((step) => step['reward'] ?? [])
  const last = status.steps.at(-1)
  const rows: (readonly [string, string] | undefined)[] = [
    ['run', `${colors.bold(status.run)}  ${state}`],
    [
      'step',
      `${status.step} of ${status.totalSteps ?? '?'}, checkpoint at ${status.checkpointStep}, policy version ${status.policyVersion}`,
    ],
    rewards.length === 0
      ? undefined
      : ['reward', `${sparkline(rewards, Math.max(10, width() - 30), [0, 1])} ${(rewards.at(-1) ?? 0).toFixed(3)}`],
    last === undefined ? undefined : ['last step', metricsText(last)],
    ['groups', tallyText(status.groups)],
    ['executions', tallyText(status.executions)],
    ...liveRows(status),
    Object.keys(status.errors).length === 0 ? undefined : ['errors', tallyText(status.errors)],
    ...status.parkedTasks.map(({ task, reason }) => ['parked', `${task}: ${reason}`] as const),
    ['folder', status.folder],
  ]
  const lines = rows.flatMap((row) => (row === undefined ? [] : [`${colors.dim(row[0].padEnd(11))}${row[1]}`]))
  if (!status.isRunning && status.summary === undefined && status.checkpointStep > 0) {
    lines.push(colors.dim(`go on with: gyre train ${join(status.folder, 'config.resolved.yaml')} --resume`))
  }
  return lines
}

/** While it runs: what the cells and engines do now. Afterwards: what is left to say of the whole run. */
function liveRows({ isRunning, live }: RunStatus): readonly (readonly [string, string])[] {
  if (live === undefined) return []
  return panelRows(live).filter(([name]) => isRunning || name === 'phi' || name === 'transfers')
}

function metricsText(step: StepMetrics): string {
  const hidden = new Set(['step', 'atMs', 'reward'])
  return Object.entries(step)
    .filter(([name, value]) => !hidden.has(name) && typeof value === 'number')
    .slice(0, 8)
    .map(([name, value]) => `${name} ${Number(value.toPrecision(3))}`)
    .join('  ')
}

function executionLine(row: ExecutionRow): string {
  const reward = row.reward === undefined ? '' : `reward ${row.reward.toFixed(2)}`
  return `${row.executionId}  ${row.state.padEnd(10)} ${(row.outcome ?? '').padEnd(22)} ${reward}`.trimEnd()
}

function tally(values: readonly string[]): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const value of values) counts[value] = (counts[value] ?? 0) + 1
  return counts
}

function tallyText(counts: Readonly<Record<string, number>>): string {
  const entries = Object.entries(counts).sort(([, a], [, b]) => b - a)
  return entries.length === 0 ? 'none yet' : entries.map(([name, count]) => `${count} ${name}`).join(', ')
}
