/**
 * @file Elastic against Colocate and every split of Async on one long-tailed workload, with real processes.
 *
 *     npm run bench:elastic -- --json FILE [--seeds 1,2,3,4,5] [--bursts N] [--splits first|all] [--base FOLDER]
 *
 * One base run trains the cold start, once for all seeds; then every policy starts from its checkpoint, one after the
 * other, with the tasks, delays and sampling of the seed. Times are of the loop alone: from the first dispatch to the
 * boundary after `--bursts` bursts. The run would go on there, so no policy pays for draining its last burst, as none
 * would in a long run; whatever it has rolled out ahead counts for nothing. With `--splits first` (the default) every
 * split of Async runs for the first seed, and only the best of them for the others. `--base` keeps the cold start
 * between runs of the bench.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { dispatchesOf, figuresOf, mean, median } from './elastic/figures.ts'
import type { RunFigures } from './elastic/figures.ts'
import { ProcessorMeter } from './elastic/processors.ts'

const { values } = parseArgs({
  options: {
    json: { type: 'string' },
    seeds: { type: 'string', default: '1,2,3,4,5' },
    bursts: { type: 'string', default: '3' },
    splits: { type: 'string', default: 'first' },
    base: { type: 'string' },
    policies: { type: 'string', default: 'elastic,qwengyre,colocate,async' },
    set: { type: 'string', multiple: true, default: [] },
  },
})
const root = resolve(import.meta.dirname, '..')
const workload = join(root, 'bench/elastic.yaml')
const runs = mkdtempSync(join(tmpdir(), 'gyre-bench-'))
const CELLS = 4
const STEPS_PER_BURST = 4
/** What gyre ends with after an interrupt. */
const STOPPED = 130
/** H of the workload file. [s] */
const TIMEOUT_S = 17
const SPLITS = Array.from({ length: CELLS - 1 }, (_, i) => i + 1)

/** Levers of each policy for this workload. */
const LEVERS: Readonly<Record<string, readonly string[]>> = {
  elastic: [
    'elastic.carryOver=2',
    'elastic.carryOverMin=1',
    'elastic.carryOverMax=2',
    'elastic.stragglerQuorum=0.75',
    'elastic.stragglerGrace=0.5',
    'elastic.overCommit=1.5',
    'elastic.kvHandover=true',
  ],
  qwengyre: ['elastic.carryOver=1'],
  async: ['elastic.carryOver=1'],
}

/** @param bursts the run is stopped at the boundary after so many; undefined lets it run to its end. */
async function train(name: string, overrides: readonly string[], bursts?: number): Promise<ProcessorMeter> {
  // A harness starts in its own workspace, so its program is named by its whole path.
  const argv = `harness.argv=[node, ${join(root, 'examples/harness/mini.mjs')}]`
  const args = [join(root, 'dist/cli/main.js'), 'train', workload, argv, `name=${name}`, ...overrides]
  const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] })
  const meter = new ProcessorMeter(child.pid ?? 0)
  const watch = setInterval(() => {
    if (bursts !== undefined && dispatchesOf(join(runs, name)).length > bursts) {
      clearInterval(watch)
      child.kill('SIGINT')
    }
  }, 200)
  const code = await new Promise<number | null>((done, fail) => {
    child.on('error', fail)
    child.on('exit', done)
  })
  clearInterval(watch)
  meter.stop()
  if (code !== 0 && !(bursts !== undefined && code === STOPPED))
    throw new Error(`gyre train ${name} ended with ${code}`)
  return meter
}

async function run(name: string, seed: number, overrides: readonly string[]): Promise<RunFigures> {
  const from = ['policy.init=folder', `policy.folder=${start}`, 'warmstart.enabled=false']
  const bursts = Number(values.bursts)
  const steps = STEPS_PER_BURST * (bursts + 1)
  const common = [`paths.runs=${runs}`, `seed=${seed}`, `training.steps=${steps}`, ...from, ...values.set]
  const meter = await train(name, [...common, ...overrides], bursts)
  const figures = figuresOf(join(runs, name), meter, bursts)
  print(name, figures)
  rmSync(join(runs, name), { recursive: true, force: true })
  return figures
}

function print(name: string, f: RunFigures): void {
  const reward = f.rewardPerStep.map((r) => r.toFixed(2)).join(' ')
  const share = (key: string): string => f.shares.map((s) => Math.round((s[key] ?? 0) * 100)).join('/')
  process.stdout.write(
    `${name.padEnd(14)} ${f.seconds.toFixed(1).padStart(6)} s  staleness ${f.meanStaleness.toFixed(2)} mean ${f.maxStaleness} max  ` +
      `cut ${f.cut} timed out ${f.timedOut} of ${f.executions}  rollout ${share('rolloutBusy')} training ${share('trainingBusy')} %  reward ${reward}\n`,
  )
}

/** Work and waits that no schedule avoids: see figures.ts and docs/measurements.md. [s] */
function lowerBound(f: RunFigures): { readonly work: number; readonly criticalPath: number; readonly bound: number } {
  const work = (f.cellSeconds + f.controlSeconds + f.otherSeconds) / availableParallelism()
  return { work, criticalPath: f.criticalPathSeconds, bound: Math.max(work, f.criticalPathSeconds) }
}

async function measureSeed(seed: number, splits: readonly number[]): Promise<Record<string, RunFigures>> {
  const figures: Record<string, RunFigures> = {}
  for (const policy of values.policies.split(',')) {
    if (policy === 'async') {
      for (const split of splits) {
        const set = ['elastic.policy=async', `elastic.trainingCells=${split}`, ...(LEVERS['async'] ?? [])]
        figures[`async-${split}`] = await run(`async-${split}-${seed}`, seed, set)
      }
    } else {
      const set = [`elastic.policy=${policy}`, ...(LEVERS[policy] ?? [])]
      figures[policy] = await run(`${policy}-${seed}`, seed, set)
    }
  }
  return figures
}

function bestSplit(figures: Readonly<Record<string, RunFigures>>): number {
  const seconds = (split: number): number => figures[`async-${split}`]?.seconds ?? Number.POSITIVE_INFINITY
  return SPLITS.reduce((best, split) => (seconds(split) < seconds(best) ? split : best))
}

function ratio(figures: Readonly<Record<string, RunFigures>>, policy: string): number {
  return (figures[policy]?.seconds ?? Number.NaN) / (figures['elastic']?.seconds ?? Number.NaN)
}

const base = values.base ?? join(runs, 'base')
const start = join(base, 'checkpoints', 'step_0')
try {
  if (!existsSync(start)) {
    process.stdout.write('cold start\n')
    await train('base', [`paths.runs=${resolve(base, '..')}`, 'training.steps=4', 'elastic.policy=colocate'])
  }
  const seeds = values.seeds.split(',').map(Number)
  const bySeed: Record<string, Record<string, RunFigures>> = {}
  let splits: readonly number[] = SPLITS
  for (const seed of seeds) {
    const figures = await measureSeed(seed, splits)
    bySeed[seed] = figures
    if (values.splits === 'first') splits = [bestSplit(figures)]
  }
  const all = Object.values(bySeed)
  const over = (policy: string): number => median(all.map((f) => ratio(f, policy)).filter((r) => Number.isFinite(r)))
  const best = `async-${bestSplit(all[0] ?? {})}`
  const of = (policy: string): RunFigures[] => all.flatMap((f) => (f[policy] === undefined ? [] : [f[policy]]))
  const colocate = of('colocate')
  const report = {
    command: `npm run bench:elastic -- --seeds ${values.seeds} --bursts ${values.bursts} --splits ${values.splits} --policies ${values.policies}`,
    processors: availableParallelism(),
    colocateOverElastic: over('colocate'),
    qwengyreOverElastic: over('qwengyre'),
    asyncOverElastic: over(best),
    asyncBestSplit: best,
    asyncOverElasticBySplit: Object.fromEntries(SPLITS.map((split) => [`async-${split}`, over(`async-${split}`)])),
    elasticOverLowerBound: median(of('elastic').map((f) => f.seconds / lowerBound(f).bound)),
    lowerBounds: of('elastic').map(lowerBound),
    workload: {
      timeoutOverMean: median(colocate.map((f) => TIMEOUT_S / f.meanExecutionSeconds)),
      trainingOverRollout: median(colocate.map((f) => f.trainingSeconds / f.rolloutSeconds)),
    },
    rewardPerStep: Object.fromEntries(
      Object.keys(all[0] ?? {}).map((policy) => [
        policy,
        Array.from({ length: STEPS_PER_BURST * Number(values.bursts) }, (_, i) =>
          mean(of(policy).map((f) => f.rewardPerStep[i] ?? Number.NaN)),
        ),
      ]),
    ),
    bySeed,
  }
  const { bySeed: _details, lowerBounds: _bounds, ...summary } = report
  process.stdout.write(`\n${JSON.stringify(summary, null, 2)}\n`)
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
} finally {
  rmSync(runs, { recursive: true, force: true })
}
