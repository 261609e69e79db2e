/** @file Keeps the picture of a run: from what the parts report to what the display shows and the logs keep. */
import type { RunConfig } from '../../config/resolve.ts'
import type { Clock } from '../../core/clock.ts'
import type { ExecutionRow, StepRow } from '../../ports/store.ts'
import type { ControllerEvent, ControllerSnapshot } from '../../run/controller-types.ts'
import type { Display } from '../../telemetry/display.ts'
import type { RunView, TransfersView } from '../../telemetry/panel.ts'
import type { RunLog } from '../../telemetry/run-log.ts'
import { noteOf } from './run-notes.ts'
import { controllerView, withTransfer } from './run-view.ts'
import { standaloneIds } from './standalone.ts'

export interface ProgressDeps {
  readonly config: RunConfig
  readonly clock: Clock
  readonly display: Display
  readonly log: RunLog
  /** Tokens sampled so far. */
  readonly sampledTokens: () => number
  /** Keeps the picture for other processes. */
  readonly keep: (view: RunView) => void
}

/** Window of the token rate. [ms] */
const RATE_WINDOW_MS = 10_000

export class RunProgress {
  readonly #deps: ProgressDeps
  readonly #startedAt: number
  readonly #rewards: number[] = []
  readonly #samples: { readonly at: number; readonly tokens: number }[] = []
  #stage = 'starting'
  #snapshot: ControllerSnapshot | undefined
  #finished = 0
  #excluded = 0
  #cut = 0
  #transfers: TransfersView | undefined
  #consumed = 0
  #staleness = { mean: Number.NaN, max: Number.NaN }
  #trainingSince: { readonly at: number; readonly step: number } | undefined

  constructor(deps: ProgressDeps) {
    this.#deps = deps
    this.#startedAt = deps.clock.now()
  }

  /** What a resumed run had reached. */
  restore(steps: readonly StepRow[]): void {
    for (const row of steps) this.#countStep(row)
  }

  note(text: string): void {
    this.#deps.log.event('note', { text })
    this.#deps.display.note(text)
  }

  stage(text: string): void {
    if (text !== this.#stage) this.#deps.log.event('stage', { stage: text })
    this.#stage = text
    this.redraw()
  }

  /** Progress within a stage, for the picture only. */
  within(text: string): void {
    this.#stage = text
    this.redraw()
  }

  execution(row: ExecutionRow): void {
    if (row.state === 'scored') this.#finished++
    else this.#excluded++
    this.#deps.log.event('execution', {
      executionId: row.executionId,
      state: row.state,
      outcome: row.outcome,
      reward: row.reward,
      errorCode: row.errorCode,
      errorMessage: row.errorMessage,
      durationMs: (row.endedAtMs ?? 0) - (row.startedAtMs ?? 0),
    })
    this.redraw()
  }

  step(row: StepRow): void {
    this.#countStep(row)
    this.#deps.log.step(row.step, row.metrics)
    this.#deps.display.stepDone(this.#view(), row.metrics)
  }

  controller(event: ControllerEvent): void {
    const { snapshot, atMs: _at, ...facts } = event
    this.#snapshot = snapshot
    this.#trainingSince ??= { at: this.#deps.clock.now(), step: snapshot.step }
    if (event.kind === 'role-transfer') this.#transfers = withTransfer(this.#transfers, event)
    if (event.kind === 'execution-cut') this.#cut++
    const names = standaloneIds(this.#deps.config.elastic.standalone)
    const told = noteOf(event, (engine) => names[engine] ?? `engine-${engine}`)
    if (told !== undefined) this.note(told)
    if (event.kind !== 'step') this.#deps.log.event(`controller-${event.kind}`, facts)
    this.redraw()
  }

  redraw(): void {
    const view = this.#view()
    this.#deps.display.update(view)
    this.#deps.keep(view)
  }

  #countStep(row: StepRow): void {
    // A step that is done again replaces the one that was lost.
    this.#rewards.length = Math.min(this.#rewards.length, row.step - 1)
    this.#rewards.push(row.metrics['reward'] ?? Number.NaN)
    this.#consumed = row.step * this.#deps.config.training.groupsPerStep
    this.#staleness = {
      mean: row.metrics['staleness_mean'] ?? Number.NaN,
      max: row.metrics['staleness_max'] ?? Number.NaN,
    }
  }

  #tokensPerSecond(now: number): number {
    this.#samples.push({ at: now, tokens: this.#deps.sampledTokens() })
    while ((this.#samples[0]?.at ?? now) < now - RATE_WINDOW_MS && this.#samples.length > 2) this.#samples.shift()
    const [first] = this.#samples
    const last = this.#samples.at(-1)
    if (first === undefined || last === undefined || last.at - first.at < 500) return 0
    return ((last.tokens - first.tokens) / (last.at - first.at)) * 1000
  }

  #view(): RunView {
    const { config, clock } = this.#deps
    const now = clock.now()
    const snapshot = this.#snapshot
    const step = snapshot?.step ?? this.#rewards.length
    const since = this.#trainingSince
    const done = since === undefined ? 0 : step - since.step
    const perStep = since === undefined || done === 0 ? undefined : (now - since.at) / done
    const { executions, groups, ...shown } = controllerView(config, snapshot)
    return {
      ...shown,
      run: config.name,
      policy: config.elastic.policy,
      stage: this.#stage,
      step,
      totalSteps: config.training.steps,
      rewards: this.#rewards,
      groups: { ...groups, consumed: this.#consumed },
      executions: { ...executions, finished: this.#finished, excluded: this.#excluded, cut: this.#cut },
      transfers: this.#transfers,
      stalenessMean: this.#staleness.mean,
      stalenessMax: this.#staleness.max,
      tokensPerSecond: this.#tokensPerSecond(now),
      elapsedMs: now - this.#startedAt,
      etaMs: perStep === undefined ? undefined : (config.training.steps - step) * perStep,
    }
  }
}
