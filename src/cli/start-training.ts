/** @file Runs the training of a config in its run folder, and says how it ended. */
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError, hasCode } from '../core/errors.ts'
import type { Store } from '../ports/store.ts'
import { ElasticController } from '../run/controller.ts'
import { FailureWatch } from '../run/failure-watch.ts'
import { GroupLedger } from '../run/ledger.ts'
import { run, type RunParts, type RunResult } from '../run/run.ts'
import { TrainingWork } from '../run/work.ts'
import { resumedState } from '../scheduler/state.ts'
import { monotonicClock, realTimers } from '../host/clock.ts'
import { type Assembly, assemble, evaluateHeldOut, openForRollout } from './compose/assemble.ts'
import { Cleanup } from './compose/cleanup.ts'
import { openDisplay } from './compose/display.ts'
import { coldStart } from './compose/run-cells.ts'
import { openRunFolder, type RunFiles } from './compose/run-files.ts'
import { controllerDeadlines, schedulerConfig, trainingSettings } from './compose/schedule.ts'
import { Timeline } from './compose/timeline.ts'
import { readSummary, summaryLines, writeSummary } from './compose/summary.ts'
import type { CliContext } from './context.ts'
import type { StartTraining, TrainOptions } from './train.ts'

interface Finished {
  readonly result: RunResult
  readonly lines: readonly string[]
}

export const startTraining: StartTraining = async ({ config, resolvedYaml }, options, context) => {
  const files = openRunFolder({
    folder: config.runFolder,
    resolvedYaml,
    resume: options.resume === true,
    fresh: options.fresh === true,
  })
  const earlier = options.resume === true ? readSummary(files) : undefined
  if (earlier?.outcome === 'done' && earlier.trainingSteps >= config.training.steps) {
    files.release()
    const done = `${config.name} has done its ${earlier.trainingSteps} steps: raise training.steps to train on`
    report({ result: earlier, lines: [done] }, options, context)
    return
  }
  const display = openDisplay(options.json === true, context)
  const cleanup = new Cleanup((text) => context.warn(text))
  cleanup.add('the run folder', files.release)
  cleanup.add('the display', () => display.end())
  // A run that failed before its first checkpoint holds nothing, and shall not be in the way of the corrected one.
  let isKept = options.resume === true
  cleanup.add('the ledger', () => {
    if (!isKept) files.discardLedger()
  })
  let assembly: Assembly | undefined
  let finished: Finished
  try {
    assembly = await assemble({ config, files, display, cleanup, home: context.home })
    finished = await train(assembly, cleanup)
    isKept = true
  } catch (error) {
    const isStopped = hasCode(error, 'E_TRAINER_STOPPED')
    isKept ||= isStopped || assembly?.store.latestCheckpoint() !== undefined
    if (!isStopped) throw error
    context.warn(error.message)
    process.exitCode = 130
    return
  } finally {
    await cleanup.close()
  }
  report(finished, options, context)
}

async function train(assembly: Assembly, cleanup: Cleanup): Promise<Finished> {
  const { config, files, store, forwarding, progress } = assembly
  const work = trainingWork(assembly)
  cleanup.add('running executions', () => work.close())
  const parts: RunParts = {
    store,
    clock: monotonicClock,
    seed: config.seed,
    policy: config.elastic.policy,
    coldStart: () => assembly.keeper.fromFresh(() => coldStart(assembly)),
    loadCells: () => openForRollout(assembly),
    evaluate: (label) => assembly.keeper.during(() => evaluateHeldOut(assembly, label)),
    schedule: (point) => resumedState(schedulerConfig(config), point),
    controller: (initial, onEvent) => {
      const timeline = new Timeline(files.file('trace.json'))
      cleanup.add('the timeline', () => timeline.close(monotonicClock.now()))
      const controller = new ElasticController({
        initial,
        supervisor: assembly.supervisor,
        forwarding,
        standalone: assembly.standalone.engines,
        work,
        clock: monotonicClock,
        timers: realTimers,
        deadlines: controllerDeadlines(config),
        checkpointFolder: join(files.folder, store.latestCheckpoint()?.folder ?? ''),
        onEvent: (event) => {
          onEvent(event)
          progress.controller(event)
          timeline.see(event)
        },
      })
      work.attach(controller)
      assembly.stop.addEventListener('abort', () => void controller.stop())
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

function trainingWork({ config, files, store, tasks, policy, execution, progress }: Assembly): TrainingWork {
  return new TrainingWork(
    {
      store,
      ledger: new GroupLedger(store, tasks.train, config.seed, config.rollout.groupSize, config.rollout.poisonLimit),
      execution,
      settings: trainingSettings(config),
      clock: monotonicClock,
      checkpointFolder: (step) => {
        const folder = files.checkpoint(step)
        policy.copyTokenizer(folder)
        return folder
      },
      relativeFolder: files.relative,
      onStep: (row) => progress.step(row),
      onExecution: (row) => progress.execution(row),
      onParked: ({ task, reason }) => progress.note(`task ${task} is parked: ${reason}`),
      onCheckpoint: (step) => pruneCheckpoints(files, store, step, config.checkpoints.keep),
    },
    new FailureWatch(),
  )
}

function report({ result, lines }: Finished, options: TrainOptions, context: CliContext): void {
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

/** Keeps the newest checkpoints and the first one. */
function pruneCheckpoints(files: RunFiles, store: Store, step: number, keep: number): void {
  const steps = [...new Set(store.steps().map((row) => row.step))].filter((s) => s > 0 && s <= step)
  const kept = new Set(steps.toSorted((a, b) => b - a).slice(0, keep))
  for (const old of steps) {
    if (!kept.has(old)) rmSync(files.file(join('checkpoints', `step_${old}`)), { recursive: true, force: true })
  }
}
