/**
 * @file `npm run test:kill -- --kills 200 --seed 1 [--steps 40] [--json FILE]`: kills processes of training runs at
 * random and compares what comes out with runs that nobody disturbed.
 */
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { DEFAULT_PLAN, type KilledRun, killRuns } from './kill-runs.ts'

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '200' },
    seed: { type: 'string', default: '1' },
    steps: { type: 'string', default: String(DEFAULT_PLAN.steps) },
    json: { type: 'string' },
  },
})

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0)
const quantile = (numbers: readonly number[], q: number): number =>
  numbers.toSorted((a, b) => a - b)[Math.min(numbers.length - 1, Math.floor(q * numbers.length))] ?? Number.NaN
const spread = (numbers: readonly number[]): { median: number; p95: number; most: number } => ({
  median: Math.round(quantile(numbers, 0.5)),
  p95: Math.round(quantile(numbers, 0.95)),
  most: Math.round(quantile(numbers, 1)),
})

const runs = await killRuns({
  ...DEFAULT_PLAN,
  kills: Number(values.kills),
  seed: Number(values.seed),
  steps: Number(values.steps),
  log: (text) => process.stdout.write(`${text}\n`),
})
const of = (pick: (run: KilledRun) => number): number => sum(runs.map(pick))
const report = {
  kills: of((run) => run.controlKills + run.cellKills),
  controlKills: of((run) => run.controlKills),
  cellKills: of((run) => run.cellKills),
  steps: of((run) => run.steps),
  seconds: Math.round(of((run) => run.seconds)),
  referenceSeconds: Math.round(of((run) => run.referenceSeconds)),
  interrupted: of((run) => run.interrupted),
  stepsUndone: of((run) => run.stepsUndone),
  cellRestartMs: spread(runs.flatMap((run) => run.cellRestartMs)),
  resumeMs: spread(runs.flatMap((run) => run.resumeMs)),
  equalWeights: runs.every((run) => run.sha256 !== '' && run.sha256 === run.referenceSha256),
  largestDifference: Math.max(...runs.map((run) => run.largestDifference)),
  otherSamples: of((run) => run.otherSamples),
  otherEvidence: of((run) => run.otherEvidence),
  problems: runs.flatMap((run) => run.problems),
  runs: runs.map(({ seed, steps, sha256, referenceSha256 }) => ({ seed, steps, sha256, referenceSha256 })),
}
process.stdout.write(`${JSON.stringify(report, null, 2)}\n`)
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
process.exitCode = report.problems.length === 0 && report.equalWeights ? 0 : 1
