/** @file What a run leaves to be read: summary.json, the training curve, and the closing lines. */
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import type { StepRow } from '../../ports/store.ts'
import type { RunResult } from '../../run/run.ts'
import { curveSvg, trailingMean } from '../../telemetry/curve.ts'
import { sparkline } from '../../telemetry/sparkline.ts'
import type { RunFiles } from './run-files.ts'

/** Steps the smoothed curve averages over. [steps] */
const SMOOTH = 5

/** NaN has no JSON: what was not measured is null. */
function jsonOf(result: RunResult): string {
  return `${JSON.stringify(result, (_key, value: unknown) => (typeof value === 'number' && !Number.isFinite(value) ? null : value), 2)}\n`
}

/** What the run in this folder ended with, or undefined while it has not ended. */
export function readSummary(files: RunFiles): RunResult | undefined {
  const path = files.file('summary.json')
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as RunResult) : undefined
}

export function writeSummary(files: RunFiles, result: RunResult, steps: readonly StepRow[]): void {
  const path = files.file('summary.json')
  writeFileSync(`${path}.part`, jsonOf(result))
  renameSync(`${path}.part`, path)
  const rewards = steps.map((row) => row.metrics['reward'] ?? Number.NaN)
  const numbered = (values: readonly number[]): (readonly [number, number])[] =>
    values.map((value, i) => [steps[i]?.step ?? i + 1, value])
  const last = steps.at(-1)?.step ?? 0
  writeFileSync(
    files.file('curve.svg'),
    curveSvg({
      title: `Reward while training (${result.policy}, seed ${result.seed})`,
      xLabel: 'training step',
      yLabel: 'mean reward',
      yRange: [0, 1],
      series: [
        { name: 'training step', points: numbered(rewards), shape: 'dots' },
        { name: `mean of ${SMOOTH} steps`, points: numbered(trailingMean(rewards, SMOOTH)) },
        {
          name: 'held-out tasks',
          points: [
            [0, result.heldOutRewardBefore],
            [last, result.heldOutRewardAfter],
          ],
          shape: 'dots',
        },
      ],
    }),
  )
}

function number(value: number): string {
  return Number.isFinite(value) ? value.toFixed(3) : 'not measured'
}

/** The lines a person reads at the end. */
export function summaryLines(files: RunFiles, result: RunResult, steps: readonly StepRow[]): readonly string[] {
  const rewards = steps.map((row) => row.metrics['reward'] ?? Number.NaN)
  return [
    '',
    `held-out reward   ${number(result.heldOutRewardBefore)} before training, ${number(result.heldOutRewardAfter)} after`,
    `training reward   ${sparkline(rewards, 60, [0, 1])}  ${result.trainingSteps} steps`,
    `time              ${result.minutes.toFixed(1)} minutes`,
    `executions        ${result.executions} with ${result.modelCalls} model calls, ${result.harnessErrors} errors seen by a harness`,
    `role transfers    ${result.roleTransfers}, ${result.liveRoleTransfers} to training with live executions, ${result.requestsMoved} requests moved`,
    `staleness         ${number(result.stalenessMean)} steps in the mean, ${result.stalenessMax} at most; ${result.executionsCut} executions cut, ${result.tokensHandedOver} tokens handed over`,
    ...(result.standaloneFailures > 0 ? [`standalone        ${result.standaloneFailures} failures waited for`] : []),
    `tokens mismatched ${result.tokensMismatched}`,
    `seed, policy      ${result.seed}, ${result.policy}`,
    `written           ${files.file('summary.json')}, curve.svg`,
  ]
}
