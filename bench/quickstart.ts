/**
 * @file The quickstart over several seeds: does a newcomer's run work, and how long does it take?
 *
 *     npm run bench:quickstart -- --json FILE [--seeds 1,2,3,4,5] [--policies elastic]
 *
 * Runs `gyre train examples/quickstart.yaml` once per seed and policy, one after the other, and collects summary.json.
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
    seeds: { type: 'string', default: '1,2,3,4,5' },
    policies: { type: 'string', default: 'elastic' },
  },
})
const root = resolve(import.meta.dirname, '..')
const runs = mkdtempSync(join(tmpdir(), 'gyre-bench-'))
const results: (RunResult & { readonly rewardPerStep: readonly number[] })[] = []

function report(): void {
  const command = `npm run bench:quickstart -- --seeds ${values.seeds} --policies ${values.policies}`
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify({ command, results }, null, 2)}\n`)
}

try {
  for (const seed of values.seeds.split(',')) {
    for (const policy of values.policies.split(',')) {
      const name = `${policy}-${seed}`
      const overrides = [`name=${name}`, `seed=${seed}`, `elastic.policy=${policy}`, `paths.runs=${runs}`]
      const main = join(root, 'dist/cli/main.js')
      const argv = [main, 'train', join(root, 'examples/quickstart.yaml'), ...overrides]
      execFileSync(process.execPath, argv, { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] })
      const result = JSON.parse(readFileSync(join(runs, name, 'summary.json'), 'utf8')) as RunResult
      const rewardPerStep = readStepMetrics(join(runs, name)).map((step) => step['reward'] ?? Number.NaN)
      results.push({ ...result, rewardPerStep })
      process.stdout.write(
        `seed ${seed} ${policy}: ${result.heldOutRewardBefore.toFixed(3)} -> ${result.heldOutRewardAfter.toFixed(3)} ` +
          `in ${result.minutes.toFixed(1)} min, ${result.executions} executions, ${result.liveRoleTransfers} live transfers, ` +
          `${result.requestsMoved} requests moved, ${result.harnessErrors} harness errors, ${result.tokensMismatched} mismatched\n`,
      )
      report()
    }
  }
} finally {
  rmSync(runs, { recursive: true, force: true })
}
