/**
 * @file Elastic against Colocate and Async on one long-tailed workload, with real processes.
 *
 *     npm run bench:elastic -- --json FILE [--seed N] [--steps N]
 *
 * One base run trains the cold start; then every policy starts from its checkpoint, one after the other, with the
 * same tasks, seeds and delays. Times are of the elastic loop alone: from the first dispatch to the last publication.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import type { RunResult } from '../src/run/run.ts'
import { readStepMetrics } from '../src/telemetry/run-log.ts'

const { values } = parseArgs({
  options: {
    json: { type: 'string' },
    seed: { type: 'string', default: '1' },
    steps: { type: 'string', default: '12' },
  },
})
const root = resolve(import.meta.dirname, '..')
const runs = mkdtempSync(join(tmpdir(), 'gyre-bench-'))
const POLICIES = {
  elastic: [],
  colocate: [],
  async: ['elastic.trainingCells=1'],
} as const

interface PolicyFigures {
  readonly trainingSeconds: number
  readonly rewardPerStep: readonly number[]
  readonly meanStaleness: number
  readonly maxStaleness: number
  readonly roleTransfers: number
  readonly liveRoleTransfers: number
  readonly requestsMoved: number
  readonly harnessErrors: number
  readonly executions: number
  /** Per cell, shares of its time. */
  readonly utilization: readonly Readonly<Record<string, number>>[]
}

function train(name: string, overrides: readonly string[]): RunResult {
  const file = join(root, 'bench/elastic.yaml')
  // A harness starts in its own workspace, so its program is named by its whole path.
  const argv = `harness.argv=[node, ${join(root, 'examples/harness/mini.mjs')}]`
  const common = [argv, `name=${name}`, `paths.runs=${runs}`, `seed=${values.seed}`, `training.steps=${values.steps}`]
  const main = join(root, 'dist/cli/main.js')
  execFileSync(process.execPath, [main, 'train', file, ...common, ...overrides], { cwd: root, stdio: 'inherit' })
  return JSON.parse(readFileSync(join(runs, name, 'summary.json'), 'utf8')) as RunResult
}

function mean(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => a + b, 0) / numbers.length
}

function percent(share: number | undefined): string {
  return `${((share ?? 0) * 100).toFixed(0)} %`
}

function figures(name: string, result: RunResult): PolicyFigures {
  const steps = readStepMetrics(join(runs, name))
  const of = (key: string): number[] => steps.map((step) => step[key] ?? Number.NaN)
  return {
    trainingSeconds: result.trainingMinutes * 60,
    rewardPerStep: of('reward'),
    meanStaleness: mean(of('staleness_mean')),
    maxStaleness: Math.max(...of('staleness_max')),
    roleTransfers: result.roleTransfers,
    liveRoleTransfers: result.liveRoleTransfers,
    requestsMoved: result.requestsMoved,
    harnessErrors: result.harnessErrors,
    executions: result.executions,
    utilization: result.cells.map(({ cellId: _id, ...ms }) => {
      const total = Object.values(ms).reduce((a, b) => a + b, 0)
      return Object.fromEntries(Object.entries(ms).map(([key, value]) => [key.replace(/Ms$/, ''), value / total]))
    }),
  }
}

try {
  train('base', ['training.steps=1'])
  const start = join(runs, 'base', 'checkpoints', 'step_0')
  const policies: Record<string, PolicyFigures> = {}
  for (const [policy, extra] of Object.entries(POLICIES)) {
    const from = ['policy.init=folder', `policy.folder=${start}`, 'warmstart.enabled=false']
    policies[policy] = figures(policy, train(policy, [`elastic.policy=${policy}`, ...from, ...extra]))
  }
  const seconds = (policy: string): number => policies[policy]?.trainingSeconds ?? Number.NaN
  const report = {
    command: `npm run bench:elastic -- --seed ${values.seed} --steps ${values.steps}`,
    colocateOverElastic: seconds('colocate') / seconds('elastic'),
    asyncOverElastic: seconds('async') / seconds('elastic'),
    policies,
  }
  process.stdout.write(`\ncolocate / elastic ${report.colocateOverElastic.toFixed(2)}\n`)
  process.stdout.write(`async / elastic    ${report.asyncOverElastic.toFixed(2)}  (one cell trains, one rolls out)\n`)
  for (const [policy, f] of Object.entries(policies)) {
    const cells = f.utilization.map(
      (u) =>
        `rollout ${percent(u['rolloutBusy'])} training ${percent(u['trainingBusy'])} idle ${percent((u['rolloutIdle'] ?? 0) + (u['trainingIdle'] ?? 0))}`,
    )
    process.stdout.write(
      `${policy.padEnd(9)} ${f.trainingSeconds.toFixed(1)} s  staleness ${f.meanStaleness.toFixed(2)} mean ${f.maxStaleness} max  ${cells.join('; ')}\n`,
    )
  }
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
} finally {
  rmSync(runs, { recursive: true, force: true })
}
