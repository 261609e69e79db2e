import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import type { CellSupervisorOptions } from '../adapters/cell/process/supervisor.ts'
import type { Cell, CellSupervisor } from '../ports/cell.ts'
import { initialState } from '../scheduler/state.ts'
import { startBigramCells } from '../../test/support/cells.ts'
import type { StartedCells } from '../../test/support/cells.ts'
import { type LeverlessConfig, withLeversOff } from '../../test/support/scheduler-config.ts'
import { PARAMETERS } from '../../test/support/toy-cells.ts'
import { ToyForwarding, ToyWork } from '../../test/support/toy-cluster.ts'
import { hurried } from '../../test/support/toy-rig.ts'
import { ElasticController } from './controller.ts'
import type { ControllerDeadlines, ControllerEvent, RunSummary } from './controller-types.ts'

const CONFIG = {
  policy: 'elastic',
  cells: 2,
  cellSlots: 12,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 2,
  carryOver: 1,
  totalSteps: 8,
  trainingCells: 1,
  demandAware: false,
  placement: 'balanced',
  executionAttempts: 2,
  cellRestarts: 3,
  excludedGroupsLimit: 4,
} satisfies LeverlessConfig

const PATIENCE_MS = 20_000
const DEADLINES: ControllerDeadlines = {
  cancelMs: PATIENCE_MS,
  switchMs: PATIENCE_MS,
  weightsMs: PATIENCE_MS,
  trainMs: PATIENCE_MS,
  reduceMs: PATIENCE_MS,
  optimizeMs: PATIENCE_MS,
  checkpointMs: PATIENCE_MS,
  restartMs: PATIENCE_MS,
  handoverMs: PATIENCE_MS,
  heartbeatMs: PATIENCE_MS,
  healthMs: PATIENCE_MS,
}
const ENGINE = { vocabSize: PARAMETERS, tokenDelayMs: 1, stepDelayMs: 5 }

const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

interface RunOptions {
  readonly config?: Partial<LeverlessConfig>
  readonly cells?: Partial<CellSupervisorOptions>
  readonly deadlines?: Partial<ControllerDeadlines>
  readonly speed?: number
  /** Tokens of the longest calls. */
  readonly longest?: number
  readonly onEvent?: (event: ControllerEvent, run: LiveRun) => void
  /** Sees every verb just before it is sent. */
  readonly onVerb?: (verb: string, cell: number, run: LiveRun) => void
}

/** A controller over real cell processes. */
class LiveRun {
  readonly cells: StartedCells
  readonly work: ToyWork
  readonly events: ControllerEvent[] = []
  readonly controller: ElasticController
  readonly steps: number

  static async start(options: RunOptions): Promise<LiveRun> {
    const cells = await startBigramCells(2, ENGINE, { slots: 12, ...options.cells })
    cleanups.push(() => cells.close())
    const run = new LiveRun(cells, options)
    cleanups.push(() => run.work.close())
    await cells.supervisor.cells[0]?.saveCheckpoint(1, run.folder('start'))
    return run
  }

  private constructor(cells: StartedCells, options: RunOptions) {
    const config = withLeversOff({ ...CONFIG, ...options.config })
    const forwarding = new ToyForwarding()
    this.cells = cells
    this.steps = config.totalSteps
    const longest = options.longest === undefined ? {} : { longest: options.longest }
    this.work = new ToyWork({ seed: 3, groupSize: config.groupSize, anyTokens: true, ...longest }, forwarding)
    this.controller = new ElasticController({
      initial: initialState(config),
      supervisor: watched(cells.supervisor, (verb, cell) => options.onVerb?.(verb, cell, this)),
      forwarding,
      standalone: [],
      work: this.work,
      ...hurried(options.speed ?? 1),
      deadlines: { ...DEADLINES, ...options.deadlines },
      checkpointFolder: join(this.work.folder, 'start'),
      onEvent: (event) => {
        this.events.push(event)
        options.onEvent?.(event, this)
      },
    })
    this.work.controller = this.controller
  }

  signal(cell: number, signal: NodeJS.Signals): void {
    const pid = this.cells.supervisor.pidOf(cell)
    if (pid !== undefined) process.kill(pid, signal)
  }

  of<K extends ControllerEvent['kind']>(kind: K): Extract<ControllerEvent, { readonly kind: K }>[] {
    return this.events.filter((e): e is Extract<ControllerEvent, { readonly kind: K }> => e.kind === kind)
  }

  folder(name: string): string {
    const folder = join(this.work.folder, name)
    mkdirSync(folder)
    return folder
  }

  /** What is wrong with a finished run: every step and every group once, and the same weights on both cells. */
  async flaws(summary: RunSummary): Promise<readonly unknown[]> {
    const { steps, consumed, problems } = this.work
    const facts = {
      outcome: [summary.outcome, summary.reason],
      steps: steps.map((s) => s.step),
      groups: [consumed.length, new Set(consumed).size],
      problems,
      weights: await this.#weightsOf(1),
    }
    const groups = this.steps * CONFIG.groupsPerStep
    const wanted = {
      outcome: ['done', ''],
      steps: Array.from({ length: this.steps }, (_, i) => i + 1),
      groups: [groups, groups],
      problems: [],
      weights: await this.#weightsOf(0),
    }
    return (Object.keys(wanted) as (keyof typeof wanted)[])
      .filter((name) => JSON.stringify(facts[name]) !== JSON.stringify(wanted[name]))
      .map((name) => ({ [name]: facts[name] }))
  }

  async #weightsOf(index: number): Promise<unknown> {
    const folder = this.folder(`end-${index}`)
    await this.cells.supervisor.cells[index]?.saveCheckpoint(this.controller.state().cells[index]?.epoch ?? 0, folder)
    const saved = JSON.parse(readFileSync(join(folder, 'bigram.json'), 'utf8')) as {
      readonly state: readonly unknown[]
    }
    return saved.state[0]
  }
}

/** The same supervisor, whose cells tell of every verb. */
function watched(supervisor: StartedCells['supervisor'], see: (verb: string, cell: number) => void): CellSupervisor {
  const cells = supervisor.cells.map((cell, index) => {
    const told = (verb: string, method: (...args: readonly unknown[]) => unknown): unknown => {
      const call = method.bind(cell)
      return (...args: readonly unknown[]): unknown => {
        see(verb, index)
        return call(...args)
      }
    }
    return new Proxy<Cell>(cell, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target)
        return typeof value === 'function'
          ? told(String(name), value as (...args: readonly unknown[]) => unknown)
          : value
      },
    })
  })
  return {
    cells,
    onDeath: (listener) => supervisor.onDeath(listener),
    restart: (index) => supervisor.restart(index),
    close: () => supervisor.close(),
  }
}

/** Whom to hit now: each role once. */
function victim(event: ControllerEvent): { readonly name: string; readonly cell: number } | undefined {
  const live = event.snapshot.cells[1]?.executions ?? 0
  if (event.kind === 'execution-finished' && live > 2) return { name: 'in rollout', cell: 1 }
  if (event.kind !== 'micro-step') return undefined
  if (event.cell === 1) return { name: 'satellite in training', cell: 1 }
  return event.step % 2 === 1 ? { name: 'core in training', cell: 0 } : undefined
}

for (const [signal, deadlines] of [
  ['SIGKILL', {}],
  // Nobody tells of a stopped process: only its silence does.
  ['SIGSTOP', { heartbeatMs: 300, healthMs: 1500 }],
] as const) {
  test(`${signal} of real cells in rollout and in training, core and satellite: every group is trained once`, async () => {
    const hit: string[] = []
    const run = await LiveRun.start({
      deadlines,
      onEvent: (event, live) => {
        const wanted = victim(event)
        if (wanted === undefined || hit.includes(wanted.name)) return
        hit.push(wanted.name)
        live.signal(wanted.cell, signal)
      },
    })
    const summary = await run.controller.run()
    expect(hit.toSorted()).toEqual(['core in training', 'in rollout', 'satellite in training'])
    expect(summary.cellRestarts).toBe(3)
    if (signal === 'SIGSTOP') {
      for (const { reason } of run.of('cell-failed')) expect(reason).toMatch(/2 heartbeats in a row missed/)
    }
    expect(await run.flaws(summary)).toEqual([])
  }, 90_000)
}

test('kill -9 of real cells in the middle of every verb: every group is trained once', async () => {
  const phases: readonly (readonly [string, number])[] = [
    ['pinKv', 0],
    ['enterTraining', 0],
    ['enterTraining', 1],
    ['zeroGradients', 0],
    ['pullWeights', 1],
    ['forwardBackward', 0],
    ['forwardBackward', 1],
    ['reduceGradients', 0],
    ['optimizerStep', 0],
    ['setPolicyVersion', 0],
    ['saveCheckpoint', 0],
    ['enterRollout', 0],
    ['enterRollout', 1],
  ]
  const left = phases.map(([verb, cell]) => `${verb} of cell ${cell}`)
  const total = left.length
  let isQuiet = true
  const run = await LiveRun.start({
    config: { kvHandover: true, totalSteps: 20, cellRestarts: total },
    longest: 60,
    onEvent: (event) => {
      const isFirst = event.kind === 'execution-started' && event.snapshot.step === 0 && left.length === total
      if (event.kind === 'step' || isFirst) isQuiet = false
    },
    onVerb: (verb, cell, live) => {
      const at = left.indexOf(`${verb} of cell ${cell}`)
      // One at a time: the next one comes a step later.
      if (isQuiet || at < 0) return
      isQuiet = true
      left.splice(at, 1)
      live.signal(cell, 'SIGKILL')
    },
  })
  const summary = await run.controller.run()
  expect(left).toEqual([])
  expect(summary.cellRestarts).toBe(total)
  expect(await run.flaws(summary)).toEqual([])
}, 120_000)

test('a satellite far slower than the others loses its work to them', async () => {
  let starts = 0
  const run = await LiveRun.start({
    // Hurried, the floor of the patience is one second; the slow cell would take ten.
    speed: 5,
    config: { totalSteps: 12 },
    deadlines: Object.fromEntries(Object.keys(DEADLINES).map((name) => [name, 5 * PATIENCE_MS])),
    cells: { engine: (index) => ({ ...ENGINE, stepDelayMs: index === 1 && starts++ === 0 ? 10_000 : 5 }) },
  })
  const summary = await run.controller.run()
  const [slow] = run.of('cell-slow')
  expect(slow).toMatchObject({ cell: 1 })
  expect(slow?.waitedMs).toBeLessThan(10_000)
  expect(run.of('cell-failed')).toMatchObject([{ cell: 1 }])
  expect(summary.cellRestarts).toBe(1)
  expect(await run.flaws(summary)).toEqual([])
}, 60_000)
