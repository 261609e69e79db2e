/** @file Composes a run from its config, drives it to its end, and undoes whatever it started. */
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { HarborScorer } from '../adapters/scorer/harbor/harbor-scorer.ts'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import type { LoadedConfig } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import { GyreError } from '../core/errors.ts'
import { createGateway, type Gateway } from '../gateway/gateway.ts'
import type { Store } from '../ports/store.ts'
import { ElasticController } from '../run/controller.ts'
import type { Controller } from '../run/controller-types.ts'
import { evaluate } from '../run/evaluate.ts'
import { openEvaluationBooks } from '../run/evaluation-books.ts'
import type { ExecutionDeps } from '../run/execution.ts'
import { FailureWatch } from '../run/failure-watch.ts'
import { GroupLedger } from '../run/ledger.ts'
import { run, type RunParts, type RunResult } from '../run/run.ts'
import { TrainingWork } from '../run/work.ts'
import { resumedState } from '../scheduler/state.ts'
import { createDisplay, type Display } from '../telemetry/display.ts'
import { openRunLog } from '../telemetry/run-log.ts'
import { composeHarness, composeSandbox, composeTasks, executionSettings, MODEL_NAME } from './compose/adapters.ts'
import { calibrate } from './compose/calibrate.ts'
import { startCells } from './compose/cells.ts'
import { Cleanup } from './compose/cleanup.ts'
import { composePolicy } from './compose/policy.ts'
import { RunProgress } from './compose/progress.ts'
import { coldStart, loadCells, type RunCellsDeps } from './compose/run-cells.ts'
import { openRunFolder, type RunFiles } from './compose/run-files.ts'
import { CONTROLLER_DEADLINES, schedulerConfig, trainingSettings } from './compose/schedule.ts'
import { summaryLines, writeSummary } from './compose/summary.ts'
import type { CliContext } from './context.ts'
import type { StartTraining, TrainOptions } from './train.ts'

export const wallClock: Clock = { now: () => Date.now() }

export const startTraining: StartTraining = async (loaded, options, context) => {
  const files = openRunFolder({
    folder: loaded.config.runFolder,
    resolvedYaml: loaded.resolvedYaml,
    resume: options.resume === true,
    fresh: options.fresh === true,
  })
  const display = createDisplay({
    kind: options.json === true ? 'json' : context.isTty ? 'panel' : 'plain',
    write: (text) => process.stdout.write(text),
    width: context.width,
    clock: wallClock,
    paint: context.colors,
  })
  const cleanup = new Cleanup((text) => context.warn(text))
  cleanup.add('the display', () => display.end())
  let finished: { readonly result: RunResult; readonly lines: readonly string[] }
  try {
    finished = await trainInFolder(loaded, files, display, cleanup, context)
  } finally {
    await cleanup.close()
  }
  report(finished, options, context)
}

function report(
  { result, lines }: { readonly result: RunResult; readonly lines: readonly string[] },
  options: TrainOptions,
  context: CliContext,
): void {
  if (options.json === true) context.print(JSON.stringify({ kind: 'summary', ...result }))
  else for (const line of lines) context.print(line)
  if (result.outcome === 'failed') {
    throw new GyreError(result.reason, { boundary: 'trainer', code: 'E_TRAINER_RUN_FAILED' })
  }
  if (result.outcome === 'stopped') {
    context.warn('stopped: go on with the same command and --resume')
    process.exitCode = 130
  }
}

/** The parts of a run, in the order they come to life; `cleanup` ends them in reverse. */
async function trainInFolder(
  { config }: LoadedConfig,
  files: RunFiles,
  display: Display,
  cleanup: Cleanup,
  context: CliContext,
): Promise<{ readonly result: RunResult; readonly lines: readonly string[] }> {
  const store = openSqliteStore(files.ledger, { durability: config.checkpoints.durability })
  cleanup.add('the store', () => store.close())
  const log = openRunLog(files.folder, wallClock)
  cleanup.add('the log', () => log.close())
  let gateway: Gateway | undefined
  const sampledTokens = (): number => gateway?.stats().sampledTokens ?? 0
  const progress = new RunProgress({ config, clock: wallClock, display, log, sampledTokens })
  progress.restore(store.steps())
  const stop = stopOnSignal(progress, cleanup)

  const tasks = await composeTasks(config, files.tasks)
  const { sandbox, because } = await composeSandbox(config)
  progress.note(because)
  await sandbox.sweep()
  const harness = composeHarness(config, context.home)
  await harness.prepare((message) => progress.note(message))
  const scorer = new HarborScorer()
  const settings = executionSettings(config, config.rollout.temperature)
  const policy = await composePolicy(config, files.policy, () => {
    progress.stage('asking the harness how it words things')
    const folder = files.file('calibration')
    return calibrate({ harness, sandbox, scorer, settings, folder }, stop.signal)
  })

  progress.stage('starting cells')
  const supervisor = await startCells({ config, vocabSize: policy.codec.vocabSize, logFolder: files.logs })
  cleanup.add('the cells', () => supervisor.close())
  gateway = await createGateway({
    codec: policy.codec,
    sink: store,
    model: MODEL_NAME,
    maxContext: config.policy.model.context,
    host: config.gateway.host,
    port: config.gateway.port,
    limits: { bodyBytes: config.gateway.bodyLimitBytes, keepAliveMs: config.gateway.keepAliveMs },
    onFailure: (error, execution) => log.event('gateway-failure', { execution, error: String(error) }),
  })
  const forwarding = gateway
  cleanup.add('the gateway', () => forwarding.close())

  const execution: ExecutionDeps = {
    forwarding,
    sandbox,
    harness,
    scorer,
    gatewayUrl: forwarding.url,
    executionFolder: (id) => {
      const folder = join(files.executions, id)
      mkdirSync(folder, { recursive: true })
      return folder
    },
    settings,
  }
  const work = new TrainingWork(
    {
      store,
      ledger: new GroupLedger(store, tasks.train, config.seed, config.rollout.groupSize),
      execution,
      settings: trainingSettings(config),
      clock: wallClock,
      checkpointFolder: (step) => {
        const folder = files.checkpoint(step)
        policy.copyTokenizer(folder)
        return folder
      },
      relativeFolder: files.relative,
      onStep: (row) => progress.step(row),
      onExecution: (row) => progress.execution(row),
      onCheckpoint: (step) => pruneCheckpoints(files, store, step, config.checkpoints.keep),
    },
    new FailureWatch(),
  )
  cleanup.add('running executions', () => work.close())

  const cellDeps: RunCellsDeps = {
    config,
    cells: supervisor.cells,
    store,
    policy,
    files,
    progress,
    stop: stop.signal,
  }
  const parts: RunParts = {
    store,
    clock: wallClock,
    seed: config.seed,
    policy: config.elastic.policy,
    coldStart: () => coldStart(cellDeps),
    loadCells: async () => {
      await loadCells(cellDeps)
      for (const cell of supervisor.cells) forwarding.setEngine(cell)
    },
    evaluate: async (label) => {
      const { executions, temperature } = config.evaluation
      const request = { label, tasks: tasks.heldOut, perTask: executions, seed: config.seed }
      const books = openEvaluationBooks(store, wallClock, request)
      let done = 0
      const result = await evaluate(
        { ...execution, settings: executionSettings(config, temperature) },
        {
          executions: books.executions,
          destinations: supervisor.cells.map((cell) => ({ engineId: cell.id, slots: config.elastic.slotsPerCell })),
          onStarted: books.onStarted,
          onDone: (id, task, outcome) => {
            books.onDone(id, task, outcome)
            progress.within(`evaluation ${label} training, ${++done} of ${books.executions.length}`)
          },
        },
        stop.signal,
      )
      stop.signal.throwIfAborted()
      progress.note(`held-out reward ${label} training: ${result.reward.toFixed(3)} over ${result.scored} executions`)
      return result
    },
    schedule: (point) => resumedState(schedulerConfig(config), point),
    controller: (initial) => {
      const controller: Controller = new ElasticController({
        initial,
        supervisor,
        forwarding,
        standalone: [],
        work,
        clock: wallClock,
        deadlines: CONTROLLER_DEADLINES,
        checkpointFolder: join(files.folder, store.latestCheckpoint()?.folder ?? ''),
        onEvent: (event) => progress.controller(event),
      })
      work.attach(controller)
      stop.signal.addEventListener('abort', () => void controller.stop())
      return controller
    },
    traffic: () => forwarding.stats(),
    onPhase: (phase) => progress.stage(phase),
  }
  const result = await run(parts)
  const steps = store.steps()
  writeSummary(files, result, steps)
  return { result, lines: summaryLines(files, result, steps) }
}

/** The first signal ends the run in order, so that it can be resumed; the second one ends the process. */
function stopOnSignal(progress: RunProgress, cleanup: Cleanup): AbortController {
  const stop = new AbortController()
  const onSignal = (signal: NodeJS.Signals): void => {
    if (stop.signal.aborted) process.exit(130)
    progress.note(`${signal}: ending the run in order; once more ends it at once`)
    stop.abort(
      new GyreError('the run was stopped: go on with the same command and --resume', {
        boundary: 'trainer',
        code: 'E_TRAINER_STOPPED',
      }),
    )
  }
  process.on('SIGINT', onSignal)
  process.on('SIGTERM', onSignal)
  cleanup.add('signal handlers', () => {
    process.off('SIGINT', onSignal)
    process.off('SIGTERM', onSignal)
  })
  return stop
}

/** Keeps the newest checkpoints and the first one. */
function pruneCheckpoints(files: RunFiles, store: Store, step: number, keep: number): void {
  const steps = [...new Set(store.steps().map((row) => row.step))].filter((s) => s > 0 && s <= step)
  const kept = new Set(steps.toSorted((a, b) => b - a).slice(0, keep))
  for (const old of steps) {
    if (!kept.has(old)) rmSync(files.file(join('checkpoints', `step_${old}`)), { recursive: true, force: true })
  }
}
