/**
 * @file The part of a run that is not scheduling: makes groups, runs their executions, cuts finished groups
 * into micro-steps, and keeps the books. The controller decides when; the store is the truth.
 */
import type { Clock } from '../core/clock.ts'
import { errorText, type GyreError } from '../core/errors.ts'
import type { ExecutionId, GroupId } from '../core/ids.ts'
import { hashSeed, seededRng } from '../core/rng.ts'
import type { ExecutionRow, LeafRow, StepRow, Store } from '../ports/store.ts'
import type { CreatedGroup } from '../scheduler/messages.ts'
import type { AdvantageEstimator } from '../training/advantages.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../training/batch.ts'
import type { PackExecution, PackedMicroStep } from '../training/forest.ts'
import { packMicroSteps } from '../training/pack.ts'
import { type StepMember, trainingStep } from '../training/step.ts'
import { admit } from '../trajectory/admission.ts'
import { ExecutionTree } from '../trajectory/tree.ts'
import type { CheckpointSummary, Controller, RunWork, StepSummary } from './controller-types.ts'
import { type EarlyDeps, EarlyForward } from './early-forward.ts'
import { RunCounters } from './counters.ts'
import { type ExecutionDeps, type ExecutionReport, runExecution } from './execution.ts'
import type { FailureWatch } from './failure-watch.ts'
import { type GroupLedger, presentAttempts, queuedRow } from './ledger.ts'
import type { ParkedTask } from './parked-tasks.ts'
import { patiently } from './patience.ts'
import { StepObserver } from './step-observer.ts'

export interface TrainingSettings {
  readonly seed: number
  /** B. [groups] */
  readonly groupsPerStep: number
  readonly advantage: AdvantageEstimator
  readonly jMax: number
  readonly maxTrajectoryTokens: number
  readonly maxMicroStepTokens: number
  /** Micro-steps a group is cut into when it is large enough, so that every cell finds work. */
  readonly microStepsPerGroup: number
  readonly objective: Objective
  readonly optimizer: (step: number) => OptimizerParams
}

export interface WorkDeps {
  readonly store: Store
  readonly ledger: GroupLedger
  readonly execution: ExecutionDeps
  readonly settings: TrainingSettings
  readonly clock: Clock
  /** Relative to the run folder, and absolute, of a step's checkpoint; the folder exists and is empty. */
  readonly checkpointFolder: (step: number) => string
  readonly relativeFolder: (folder: string) => string
  readonly onStep: (row: StepRow) => void
  readonly onExecution: (row: ExecutionRow, report: ExecutionReport) => void
  /** A checkpoint is durable. */
  readonly onCheckpoint: (step: number) => void
  /** A task is not dealt any more. */
  readonly onParked?: (parked: ParkedTask) => void
}

export class TrainingWork implements RunWork {
  readonly early: EarlyForward
  readonly #deps: WorkDeps
  readonly #stop = new AbortController()
  readonly #running = new Set<Promise<void>>()
  /** Executions whose harness may still be ended early. */
  readonly #cuts = new Map<ExecutionId, AbortController>()
  readonly #watch: FailureWatch
  readonly #observer = new StepObserver()
  /** Done, and not yet part of a checkpoint. */
  #pendingSteps: StepRow[] = []
  #controller: Controller | undefined

  constructor(deps: WorkDeps, watch: FailureWatch) {
    this.#deps = deps
    this.#watch = watch
    this.early = new EarlyForward({
      maxTokens: deps.settings.maxMicroStepTokens,
      scored: (executionId) => this.#scored(executionId),
      executions: async (groupId) => this.#executions(groupId),
      pack: (executions) => this.#pack(executions),
      expect: (groupId, step, packed) => this.#observer.expect(groupId, step, packed),
    })
  }

  /** The controller to report to; called once before it runs. */
  attach(controller: Controller): void {
    this.#controller = controller
  }

  /** Ends every running execution and waits until their sandboxes are gone. */
  async close(): Promise<void> {
    this.#stop.abort(new Error('the run is ending'))
    await Promise.allSettled(this.#running)
  }

  createGroups(request: {
    readonly count: number
    readonly dispatchVersion: number
    readonly burst: number
  }): readonly CreatedGroup[] {
    const made = this.#deps.ledger.create(request.count, request.dispatchVersion, request.burst)
    return made.map(({ row, members }) => ({
      groupId: row.groupId,
      executionIds: members.map((member) => member.executionId),
    }))
  }

  newAttempt(executionId: ExecutionId): ExecutionId {
    const row = this.#row(executionId)
    const next = queuedRow(row.groupId, row.member, row.attempt + 1)
    this.#deps.store.putExecution(next)
    return next.executionId
  }

  startExecution(executionId: ExecutionId): void {
    const life = this.#live(executionId).catch((error: unknown) => {
      this.#controller?.abort(`the books of execution ${executionId} cannot be kept: ${errorText(error)}`)
    })
    this.#running.add(life)
    void life.finally(() => this.#running.delete(life))
  }

  cutExecution(executionId: ExecutionId): void {
    this.#cuts.get(executionId)?.abort(new Error('the execution was cut'))
  }

  async #live(executionId: ExecutionId): Promise<void> {
    const { store, clock, ledger, settings } = this.#deps
    const row = this.#row(executionId)
    const group = store.groups().find((g) => g.groupId === row.groupId)
    const task = group === undefined ? undefined : ledger.taskNamed(group.taskName)
    if (task === undefined) throw new Error(`its task ${group?.taskName ?? '?'} is not in the task set any more`)
    const started: ExecutionRow = { ...row, state: 'running', startedAtMs: clock.now() }
    await this.#write(() => store.putExecution(started))
    const cut = new AbortController()
    this.#cuts.set(executionId, cut)
    const report = await runExecution(this.#deps.execution, {
      executionId,
      task,
      // Not by the attempt: what runs again after an interruption samples the same tokens from the same weights, so
      // that what is trained on does not depend on who was killed when.
      seed: hashSeed('execution', settings.seed, row.groupId, row.member),
      onTerminated: async () => {
        this.#cuts.delete(executionId)
        await this.#write(() => store.putExecution({ ...started, state: 'evaluating' }))
        this.#controller?.executionEnded(executionId)
      },
      stop: this.#stop.signal,
      cut: cut.signal,
    }).finally(() => this.#cuts.delete(executionId))
    await this.#settle(started, report)
  }

  /** Waits while the disk is full: the execution keeps its slot, and nothing of it is lost. */
  #write<T>(write: () => T): Promise<T> {
    return patiently(write, this.#stop.signal)
  }

  async #settle(started: ExecutionRow, report: ExecutionReport): Promise<void> {
    const { store, clock } = this.#deps
    const row: ExecutionRow = {
      ...started,
      state: report.score === undefined ? 'excluded' : 'scored',
      outcome: report.outcome,
      reward: report.score?.reward,
      parts: report.score?.parts ?? {},
      errorCode: report.error?.code,
      errorMessage: report.error === undefined ? undefined : errorText(report.error),
      endedAtMs: clock.now(),
    }
    await this.#write(() => store.putExecution(row))
    const counters = new RunCounters(store)
    await this.#write(() => counters.add({ model_calls: report.modelCalls }))
    await this.#write(() => counters.add({ harness_errors: report.harnessErrors }))
    if (report.outcome === 'interrupted') return
    this.#deps.onExecution(row, report)
    const fatal = this.#watch.see(report)
    if (fatal !== undefined) this.#controller?.abort(fatal.message)
    else if (report.outcome === 'infrastructure-failed') {
      // It may get a new attempt, and then its group goes on.
      this.#controller?.executionFailed(row.executionId, reasonOf(report.error))
      await this.#closeGroup(row.groupId)
    } else {
      // First, so that a lost group is not replaced by one of the task it parked.
      await this.#closeGroup(row.groupId)
      if (report.score !== undefined) this.#controller?.executionScored(row.executionId)
      else this.#controller?.executionExcluded(row.executionId, reasonOf(report.error))
    }
  }

  async #closeGroup(groupId: GroupId): Promise<void> {
    const parked = await this.#write(() => this.#deps.ledger.close(groupId))
    if (parked !== undefined) this.#deps.onParked?.(parked)
  }

  async microSteps(groupId: GroupId, step: number): Promise<readonly MicroBatch[]> {
    const packed = this.#pack(await this.#executions(groupId))
    this.#observer.expect(groupId, step, packed)
    return packed.map((p) => p.batch)
  }

  #pack(executions: readonly PackExecution[]): readonly PackedMicroStep[] {
    const { settings } = this.#deps
    return packMicroSteps(executions, {
      maxTokens: settings.maxMicroStepTokens,
      mergePrefix: true,
      minMicroSteps: settings.microStepsPerGroup,
    })
  }

  /** Of a complete group, those that carry gradient, with their token weights in the step; says what became of leaves. */
  async #executions(groupId: GroupId): Promise<readonly PackExecution[]> {
    const { settings, store } = this.#deps
    const rows = presentAttempts(store.executions(groupId))
    const members = rows.map((row) => this.#member(row))
    const cut = trainingStep([{ groupId, members: members.map((m) => m.member) }], settings.advantage)
    const teaches = cut.executions.length > 0
    for (const { leaves, member } of members) {
      const rowsOfLeaves = teaches ? leaves : leaves.map(withoutGradient)
      await this.#write(() => store.putLeaves(member.executionId, rowsOfLeaves))
    }
    return cut.executions.map((e) => ({ ...e, tokenWeight: e.tokenWeight / settings.groupsPerStep }))
  }

  #scored(executionId: ExecutionId): ReturnType<EarlyDeps['scored']> {
    const row = this.#row(executionId)
    const { member } = this.#member(row)
    const siblings = presentAttempts(this.#deps.store.executions(row.groupId))
    const rewards = siblings.flatMap(({ state, reward }) =>
      state === 'scored' && reward !== undefined ? [reward] : [],
    )
    return { trajectories: member.trajectories, reward: member.reward ?? 0, rewards }
  }

  #member(row: ExecutionRow): { member: StepMember; leaves: readonly LeafRow[] } {
    const { settings, store } = this.#deps
    if (row.state !== 'scored') {
      return { member: { executionId: row.executionId, reward: undefined, trajectories: [] }, leaves: [] }
    }
    const tree = ExecutionTree.fromRecords(row.executionId, store.calls(row.executionId))
    const { trajectories, leaves } = admit(tree, {
      jMax: settings.jMax,
      rng: seededRng(hashSeed('admission', settings.seed, row.groupId, row.member)),
      maxTokens: settings.maxTrajectoryTokens,
    })
    return { member: { executionId: row.executionId, reward: row.reward, trajectories }, leaves }
  }

  objective(): Objective {
    return this.#deps.settings.objective
  }

  optimizer(step: number): OptimizerParams {
    return this.#deps.settings.optimizer(step)
  }

  observe(_groupId: GroupId, batch: MicroBatch, result: ForwardBackwardResult): void {
    this.#observer.see(batch, result)
  }

  stepDone(summary: StepSummary): void {
    const { store, clock } = this.#deps
    const scored = summary.groups
      .flatMap((id) => presentAttempts(store.executions(id)))
      .filter((row) => row.state === 'scored')
    const rewards = scored.map((row) => row.reward ?? Number.NaN)
    const row: StepRow = {
      step: summary.step,
      burst: summary.burst,
      groups: summary.groups,
      metrics: {
        ...summary.metrics,
        ...this.#observer.take(summary.step - 1),
        reward: rewards.reduce((a, b) => a + b, 0) / rewards.length,
        executions: rewards.length,
        at_ms: clock.now(),
      },
    }
    this.#pendingSteps.push(row)
    this.#deps.onStep(row)
  }

  stepsUndone(toStep: number): void {
    this.#pendingSteps = this.#pendingSteps.filter((row) => row.step <= toStep)
  }

  checkpointFolder(step: number): string {
    return this.#deps.checkpointFolder(step)
  }

  checkpoint(summary: CheckpointSummary): Promise<void> {
    this.#deps.store.commitCheckpoint(
      {
        step: summary.step,
        policyVersion: summary.policyVersion,
        burst: summary.burst,
        folder: this.#deps.relativeFolder(summary.folder),
      },
      this.#pendingSteps,
    )
    this.#pendingSteps = []
    this.#deps.onCheckpoint(summary.step)
    return Promise.resolve()
  }

  #row(executionId: ExecutionId): ExecutionRow {
    const row = this.#deps.store.execution(executionId)
    if (row === undefined) throw new Error(`execution ${executionId} is not in the store`)
    return row
  }
}

function reasonOf(error: GyreError | undefined): string {
  return error === undefined ? 'it was not scored' : `${error.code}: ${error.message}`
}

function withoutGradient(leaf: LeafRow): LeafRow {
  return leaf.fate === 'picked' ? { ...leaf, fate: 'no-gradient', trainedTokens: 0 } : leaf
}
