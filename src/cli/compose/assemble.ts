/** @file Brings the parts of a run to life in order; `cleanup` ends them in reverse. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { HarborScorer } from '../../adapters/scorer/harbor/harbor-scorer.ts'
import { openSqliteStore } from '../../adapters/store/sqlite/sqlite-store.ts'
import type { RunConfig } from '../../config/resolve.ts'
import { invariant } from '../../core/errors.ts'
import { createGateway, type Gateway } from '../../gateway/gateway.ts'
import { monotonicClock } from '../../host/clock.ts'
import type { CellSupervisor } from '../../ports/cell.ts'
import type { Store } from '../../ports/store.ts'
import { RunCounters } from '../../run/counters.ts'
import { evaluate, type EvaluationResult } from '../../run/evaluate.ts'
import { openEvaluationBooks } from '../../run/evaluation-books.ts'
import type { ExecutionDeps } from '../../run/execution.ts'
import type { Display } from '../../telemetry/display.ts'
import { openLiveFile } from '../../telemetry/live-file.ts'
import { openRunLog } from '../../telemetry/run-log.ts'
import {
  composeHarness,
  composeSandbox,
  composeTasks,
  executionSettings,
  MODEL_NAME,
  type TaskSets,
} from './adapters.ts'
import { calibrate } from './calibrate.ts'
import { startCells } from './cells.ts'
import type { Cleanup } from './cleanup.ts'
import { CellKeeper } from './keep-cells.ts'
import { modelShape, withModelOfFolder } from './model.ts'
import { composePolicy, type Policy } from './policy.ts'
import { RunProgress } from './progress.ts'
import { lastCheckpoint, loadCell, type RunCellsDeps } from './run-cells.ts'
import type { RunFiles } from './run-files.ts'
import { StandaloneEngines, weightsOf } from './standalone.ts'
import { stopOnSignal } from './stop.ts'

export interface AssemblyRequest {
  readonly config: RunConfig
  readonly files: RunFiles
  readonly display: Display
  readonly cleanup: Cleanup
  readonly home: string
}

/** A run with everything up but the training loop. */
export interface Assembly extends RunCellsDeps {
  readonly tasks: TaskSets
  readonly supervisor: CellSupervisor
  readonly keeper: CellKeeper
  readonly standalone: StandaloneEngines
  readonly forwarding: Gateway
  readonly execution: ExecutionDeps
}

export async function assemble(request: AssemblyRequest): Promise<Assembly> {
  const { files, display, cleanup, home } = request
  const store = openSqliteStore(files.ledger, {
    durability: request.config.checkpoints.durability,
    onFull: ({ message }) => display.note(`${message}; what waits for it goes on by itself`),
  })
  cleanup.add('the store', () => store.close())
  const log = openRunLog(files.folder, monotonicClock)
  cleanup.add('the log', () => log.close())
  let forwarding: Gateway | undefined
  const sampledTokens = (): number => forwarding?.stats().sampledTokens ?? 0
  const keep = openLiveFile(files.folder, monotonicClock)
  const progress = new RunProgress({ config: request.config, clock: monotonicClock, display, log, sampledTokens, keep })
  progress.restore(store.steps())
  const stop = stopOnSignal(progress, cleanup)

  const tasks = await composeTasks(request.config, files.tasks)
  const config = withModelOfFolder(request.config, files.policy)
  const { sandbox, because } = await composeSandbox(config)
  progress.note(because)
  await sandbox.sweep()
  const harness = composeHarness(config, home)
  await harness.prepare((message) => progress.note(message))
  const scorer = new HarborScorer()
  const settings = executionSettings(config, config.rollout.temperature)
  const policy = await composePolicy(config, files.policy, () => {
    progress.stage('asking the harness how it words things')
    return calibrate({ harness, sandbox, scorer, settings, folder: files.file('calibration') }, stop)
  })

  progress.stage('starting cells')
  const shape = modelShape(config, files.policy, policy.codec.vocabSize)
  const supervisor = await startCells({ config, shape, logFolder: files.logs })
  cleanup.add('the cells', () => supervisor.close())
  const standalone = new StandaloneEngines({
    config,
    shape,
    logFolder: files.logs,
    vocabSize: policy.codec.vocabSize,
    stop,
    note: (text) => progress.note(text),
  })
  cleanup.add('the standalone engines', () => standalone.close())
  forwarding = await startGateway(config, policy, store, (error, execution) =>
    log.event('gateway-failure', { execution, error: String(error) }),
  )
  const gateway = forwarding
  cleanup.add('the gateway', () => gateway.close())
  const execution: ExecutionDeps = {
    forwarding: gateway,
    sandbox,
    harness,
    scorer,
    gatewayUrl: gateway.url,
    executionFolder: (id) => {
      const folder = join(files.executions, id)
      mkdirSync(folder, { recursive: true })
      return folder
    },
    settings,
  }
  const cells = supervisor.cells
  const keeper = keeperOf({ config, files, store, supervisor, progress }, gateway)
  return {
    config,
    files,
    store,
    policy,
    progress,
    stop,
    tasks,
    supervisor,
    keeper,
    standalone,
    cells,
    forwarding: gateway,
    execution,
  }
}

function keeperOf(
  {
    config,
    files,
    store,
    supervisor,
    progress,
  }: Pick<Assembly, 'config' | 'files' | 'store' | 'supervisor' | 'progress'>,
  forwarding: Gateway,
): CellKeeper {
  return new CellKeeper({
    supervisor,
    forwarding,
    load: (cell) => loadCell(cell, lastCheckpoint(store), files),
    restarts: config.elastic.cellRestarts,
    note: (text) => progress.note(text),
    onRestart: () => new RunCounters(store).add({ cell_restarts: 1 }),
  })
}

function startGateway(
  config: RunConfig,
  policy: Policy,
  store: Store,
  onFailure: (error: unknown, execution: string | undefined) => void,
): Promise<Gateway> {
  return createGateway({
    codec: policy.codec,
    sink: store,
    now: () => Math.round(monotonicClock.now()),
    model: MODEL_NAME,
    maxContext: config.policy.model.context,
    host: config.gateway.host,
    port: config.gateway.port,
    limits: { bodyBytes: config.gateway.bodyLimitBytes, keepAliveMs: config.gateway.keepAliveMs },
    onFailure,
  })
}

/** Cells in rollout with the last checkpoint, standalone engines with the same, all known to the gateway. */
export async function openForRollout(assembly: Assembly): Promise<void> {
  const { cells, standalone, forwarding, files } = assembly
  await assembly.keeper.loadAll()
  const checkpoint = lastCheckpoint(assembly.store)
  const [core] = cells
  invariant(core !== undefined, 'a run has at least one cell')
  await standalone.open(weightsOf(checkpoint, files.folder), core)
  for (const engine of [...cells, ...standalone.serving]) forwarding.setEngine(engine)
}

/** Runs the held-out tasks; their executions go into the store under `label`. */
export async function evaluateHeldOut(assembly: Assembly, label: string): Promise<EvaluationResult> {
  const { config, store, tasks, progress, cells, standalone, execution, stop } = assembly
  const { executions, temperature } = config.evaluation
  const books = openEvaluationBooks(store, monotonicClock, {
    label,
    tasks: tasks.heldOut,
    perTask: executions,
    seed: config.seed,
  })
  let done = 0
  const result = await evaluate(
    { ...execution, settings: executionSettings(config, temperature) },
    {
      executions: books.executions,
      destinations: [
        ...cells.map((cell) => ({ engineId: cell.id, slots: config.elastic.slotsPerCell })),
        ...standalone.serving.map((engine) => ({ engineId: engine.id, slots: engine.slots })),
      ],
      onStarted: books.onStarted,
      onDone: (id, task, report) => {
        books.onDone(id, task, report)
        progress.within(`evaluation ${label}, ${++done} of ${books.executions.length}`)
      },
    },
    stop,
  )
  stop.throwIfAborted()
  progress.note(`held-out reward ${result.reward.toFixed(3)} over ${result.scored} executions (${label})`)
  return result
}
