/** @file A controller over real cell processes, with what a test sees of its run, and the check of what it must have done. */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Cell, CellSupervisor } from '../../src/ports/cell.ts'
import { ElasticController } from '../../src/run/controller.ts'
import type { ControllerDeadlines, ControllerEvent, RunSummary } from '../../src/run/controller-types.ts'
import { initialState } from '../../src/scheduler/state.ts'
import type { StartedCells } from './cells.ts'
import { type LeverlessConfig, withLeversOff } from './scheduler-config.ts'
import { ToyForwarding, ToyWork } from './toy-cluster.ts'
import { hurried } from './toy-rig.ts'

const BASE = {
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

export const PATIENCE_MS = 20_000
export const DEADLINES: ControllerDeadlines = {
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

export interface LiveRunOptions {
  readonly config?: Partial<LeverlessConfig>
  readonly deadlines?: Partial<ControllerDeadlines>
  readonly speed?: number
  /** Tokens of the longest calls. */
  readonly longest?: number
  readonly onEvent?: (event: ControllerEvent, run: LiveRun) => void
  /** Sees every verb just before it is sent. */
  readonly onVerb?: (verb: string, cell: number, run: LiveRun) => void
}

/** A controller over real cell processes. */
export class LiveRun {
  readonly cells: StartedCells
  readonly work: ToyWork
  readonly events: ControllerEvent[] = []
  readonly controller: ElasticController
  readonly steps: number

  /** Over cells that hold the weights to begin with. The caller closes the cells, and this. */
  static async over(cells: StartedCells, options: LiveRunOptions): Promise<LiveRun> {
    const run = new LiveRun(cells, options)
    await cells.supervisor.cells[0]?.saveCheckpoint(1, run.folder('start'))
    return run
  }

  close(): void {
    this.work.close()
  }

  private constructor(cells: StartedCells, options: LiveRunOptions) {
    const config = withLeversOff({ ...BASE, ...options.config })
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
    const groups = this.steps * BASE.groupsPerStep
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
    const tensors = join(folder, 'model.safetensors')
    if (existsSync(tensors)) return createHash('sha256').update(readFileSync(tensors)).digest('base64')
    // Of the bigram engine: its optimizer state lies beside the weights, and only the core has one.
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
