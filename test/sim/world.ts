/**
 * @file One history: the live controller with its commands, the gateway's routing, cells with their real host, the
 * run's real work and books, in virtual time, among the faults of a plan; control processes come and go.
 */
import { errorText } from '../../src/core/errors.ts'
import type { EngineId, ExecutionId } from '../../src/core/ids.ts'
import { ElasticController } from '../../src/run/controller.ts'
import type { RunSummary } from '../../src/run/controller-types.ts'
import { FailureWatch } from '../../src/run/failure-watch.ts'
import { GroupLedger } from '../../src/run/ledger.ts'
import { resumePoint } from '../../src/run/resume.ts'
import { resumedState } from '../../src/scheduler/state.ts'
import type { SchedulerState } from '../../src/scheduler/types.ts'
import { SimBooks } from './books.ts'
import { SimStandalone, SimSupervisor } from './cell.ts'
import { Chaos } from './chaos.ts'
import type { Disk } from './engine.ts'
import { SimForwarding } from './forwarding.ts'
import { Judge } from './judge.ts'
import { Machine } from './machines.ts'
import type { Surroundings } from './machines.ts'
import { SimHarness, SimSandbox, SimScorer } from './outside.ts'
import type { Blow, Plan } from './plan.ts'
import { PARAMETERS } from './policy.ts'
import { Domain, VirtualTime } from './virtual-time.ts'
import { SimWork, TASKS } from './work.ts'

const DEADLINES = {
  cancelMs: 600,
  switchMs: 700,
  weightsMs: 900,
  trainMs: 800,
  reduceMs: 900,
  optimizeMs: 700,
  checkpointMs: 900,
  restartMs: 1500,
  handoverMs: 200,
  heartbeatMs: 400,
  healthMs: 250,
} as const

/** Every run ends within this long after the last fault. [ms] */
const LIVENESS_MS = 60_000
/** What a finished run may still be about: the longest deadline, and a bit. [ms] */
const SETTLE_MS = 6000
const FIRST_CHECKPOINT = 'step-0'

export interface History {
  readonly plan: Plan
  /** Broken promises; empty when all is well. */
  readonly problems: readonly string[]
  readonly coverage: ReadonlyMap<string, number>
  /** Of everything that happened: equal for equal histories. */
  readonly fingerprint: number
  readonly events: number
  /** [ms] virtual */
  readonly durationMs: number
  /** With `keepLog`. */
  readonly log: readonly string[]
}

interface Life {
  readonly domain: Domain
  readonly controller: ElasticController
  readonly work: SimWork
  readonly forwarding: SimForwarding
  readonly sandbox: SimSandbox
  summary: RunSummary | undefined
}

export async function playHistory(plan: Plan, options: { readonly keepLog?: boolean } = {}): Promise<History> {
  return new World(plan, options.keepLog ?? false).play()
}

class World {
  readonly #plan: Plan
  readonly #time = new VirtualTime()
  readonly #chaos: Chaos
  readonly #disk: Disk = new Map([[FIRST_CHECKPOINT, new Float32Array(PARAMETERS)]])
  readonly #machines: Machine[] = []
  readonly #engines: readonly Machine[]
  readonly #books: SimBooks
  readonly #judge: Judge
  readonly #around: Surroundings
  readonly #log: string[] = []
  readonly #keepLog: boolean
  #fingerprint = 0x811c9dc5
  #life: Life | undefined
  #lives = 0

  constructor(plan: Plan, keepLog: boolean) {
    this.#plan = plan
    this.#keepLog = keepLog
    this.#chaos = new Chaos(plan, this.#time)
    this.#judge = new Judge(plan.config, this.#disk, this.#time, (line) => this.#write(line))
    const accuse = (problem: string): void => this.#judge.accuse(problem)
    this.#books = new SimBooks(accuse)
    this.#around = {
      time: this.#time,
      chaos: this.#chaos,
      disk: this.#disk,
      accuse,
      log: (line) => this.#write(line),
    }
    for (let index = 0; index < plan.config.cells; index++) {
      this.#machines.push(new Machine(`cell-${index}`, index, this.#machines, this.#around))
    }
    this.#engines = plan.config.standaloneSlots.map(
      (_, index) => new Machine(`standalone-${index}`, index, [], this.#around),
    )
  }

  async play(): Promise<History> {
    const { blows } = this.#plan
    for (const blow of blows) this.#time.deliver(this.#time.world, blow.atMs, () => this.#strike(blow))
    for (const machine of [...this.#machines, ...this.#engines]) machine.start(this.#plan.config.cellSlots)
    this.#time.deliver(this.#time.world, 0, () => this.#begin({ asksEpochs: false }))
    const lastFaultMs = Math.max(this.#plan.quietFromMs, ...blows.map((b) => b.atMs + ('forMs' in b ? b.forMs : 500)))
    const isOver = await this.#time.run(() => this.#life?.summary !== undefined, lastFaultMs + LIVENESS_MS)
    if (isOver) await this.#end()
    else this.#judge.accuse(`the run has not ended by ${Math.round(this.#time.now())} ms: ${this.#describe()}`)
    return {
      plan: this.#plan,
      problems: this.#judge.problems,
      coverage: this.#chaos.coverage,
      fingerprint: this.#fingerprint >>> 0,
      events: this.#time.events,
      durationMs: this.#time.now(),
      log: this.#log,
    }
  }

  /** A control process, from its books. */
  #begin({ asksEpochs }: { readonly asksEpochs: boolean }): void {
    const domain = new Domain(`control-${this.#lives++}`)
    this.#write(`${domain.name} begins`)
    this.#time.deliver(domain, 0, () => {
      const epochs = this.#machines.map(({ process }) => process?.host.health().epoch ?? 0)
      try {
        const life = this.#compose(domain, asksEpochs ? Math.max(...epochs) + 1 : 1)
        this.#life = life
        void life.controller.run().then((summary) => (life.summary = summary))
      } catch (error) {
        this.#judge.accuse(`the run cannot begin: ${errorText(error)}`)
      }
    })
  }

  #compose(domain: Domain, firstEpoch: number): Life {
    const { config, seed } = this.#plan
    const time = this.#time
    const watch = {
      answered: this.#judge.answered.bind(this.#judge),
      failed: this.#judge.harnessSaw.bind(this.#judge),
      routed: (routes: ReadonlyMap<ExecutionId, EngineId | undefined>): void =>
        this.#judge.routed(routes, this.#life?.work.owners ?? new Set()),
    }
    const forwarding = new SimForwarding(this.#around, watch)
    const sandbox = new SimSandbox(this.#around)
    const work = new SimWork(
      { ...this.#around, books: this.#books, forwarding, sandbox, judge: this.#judge, seed },
      {
        ledger: new GroupLedger(this.#books, TASKS, seed, config.groupSize, 3),
        harness: new SimHarness(forwarding, this.#around),
        scorer: new SimScorer(this.#around),
        watch: new FailureWatch(),
        groupsPerStep: config.groupsPerStep,
      },
    )
    const initial = resumedState(config, { ...resumePoint(this.#books), firstEpoch })
    const controller = new ElasticController({
      initial,
      supervisor: new SimSupervisor(this.#machines, domain, this.#around, config.cellSlots),
      forwarding,
      standalone: this.#engines.map(
        (machine, index) => new SimStandalone(machine, domain, this.#around, config.standaloneSlots[index] ?? 1),
      ),
      work,
      clock: time,
      timers: time,
      deadlines: DEADLINES,
      checkpointFolder: this.#books.latestCheckpoint()?.folder ?? FIRST_CHECKPOINT,
      onEvent: (event) => {
        const { kind } = event
        this.#write(JSON.stringify({ ...event, atMs: undefined, snapshot: undefined }))
        if (kind === 'role-transfer') this.#chaos.count('role-transfer')
        if (kind === 'steps-undone') this.#chaos.count('steps-undone')
        if (kind === 'cell-failed') this.#chaos.count('cell-failed')
      },
    })
    work.attach(controller)
    return { domain, controller, work, forwarding, sandbox, summary: undefined }
  }

  #strike(blow: Blow): void {
    if (this.#life?.summary !== undefined) return
    const untilMs = this.#time.now() + ('forMs' in blow ? blow.forMs : 0)
    const machine =
      'cell' in blow ? this.#machines[blow.cell] : 'engine' in blow ? this.#engines[blow.engine] : undefined
    if (machine !== undefined && machine.process === undefined) return
    this.#chaos.count(blow.kind)
    this.#write(`blow ${JSON.stringify(blow)}`)
    if (blow.kind === 'control-kill') this.#killControl(blow)
    else if (blow.kind === 'control-stall' && this.#life !== undefined) this.#life.domain.pausedUntilMs = untilMs
    else if (blow.kind === 'disk-full') this.#chaos.diskFullUntilMs = untilMs
    else if (machine !== undefined) this.#hit(machine, blow.kind, untilMs)
  }

  #hit(machine: Machine, kind: Blow['kind'], untilMs: number): void {
    const { domain } = machine.process ?? {}
    if (kind === 'kill') {
      if (machine.index === 0) this.#chaos.count('core-kill')
      machine.kill('kill -9')
    } else if (kind === 'hang' && domain !== undefined) domain.pausedUntilMs = Number.POSITIVE_INFINITY
    else if (kind === 'pause' && domain !== undefined) domain.pausedUntilMs = untilMs
    else if (kind === 'slow' || kind === 'standalone-slow') machine.slowUntilMs = untilMs
    else if (kind === 'partition') machine.cutUntilMs = untilMs
    else if (kind === 'standalone-down') {
      machine.kill('its server ended')
      this.#time.deliver(this.#time.world, untilMs - this.#time.now(), () => {
        if (machine.process === undefined) machine.start(this.#plan.config.cellSlots)
      })
    }
  }

  #killControl(blow: Extract<Blow, { readonly kind: 'control-kill' }>): void {
    const life = this.#life
    if (life === undefined || !life.domain.isAlive) return
    life.domain.kill()
    if (blow.cells === 'survive') this.#chaos.count('cells-survive')
    const { time } = this.#around
    time.deliver(time.world, 5, () => {
      if (blow.cells === 'end') for (const machine of this.#machines) machine.kill('its owner is gone')
    })
    time.deliver(time.world, blow.downMs, () => {
      // Whoever starts a run starts the cells it does not find.
      for (const machine of this.#machines) {
        if (machine.process === undefined) machine.start(this.#plan.config.cellSlots)
      }
      this.#begin(blow)
    })
  }

  /** Ends what a run owns, lets it settle, and looks at everything. */
  async #end(): Promise<void> {
    const life = this.#life as Life
    const { domain, sandbox, summary } = life
    let isClosed = false
    this.#time.deliver(domain, 0, () => {
      void this.#close(life).then(() => (isClosed = true))
    })
    const limitMs = this.#time.now() + SETTLE_MS
    await this.#time.run(() => false, limitMs)
    if (!isClosed) this.#judge.accuse('what executions own is not closed in time')
    const timers = this.#time.pendingTimers(domain)
    if (timers.length > 0) this.#judge.accuse(`timers are left behind, due at ${timers.join(', ')} ms`)
    if (sandbox.alive.size > 0) this.#judge.accuse(`sandboxes are left behind: ${[...sandbox.alive].join(' ')}`)
    this.#judge.judge(summary as RunSummary, this.#books, this.#machines)
  }

  async #close({ work, forwarding }: Life): Promise<void> {
    await Promise.all([work.close(), forwarding.close()])
  }

  #describe(): string {
    const state = this.#life?.controller.state()
    if (state === undefined) return 'no controller'
    return JSON.stringify({ ...brief(state), held: this.#life?.forwarding.stats().held })
  }

  #write(line: string): void {
    const text = `${this.#time.now().toFixed(3)} ${this.#time.current.name}: ${line}`
    for (let i = 0; i < text.length; i++) {
      this.#fingerprint = Math.imul(this.#fingerprint ^ text.charCodeAt(i), 0x01000193)
    }
    if (this.#keepLog) this.#log.push(text)
  }
}

function brief({
  phase,
  step,
  burst,
  cells,
  groups,
  openStep,
  transfer,
  creating,
  standalone,
}: SchedulerState): object {
  return {
    phase,
    step,
    burst,
    creating,
    transfer,
    openStep,
    standalone,
    cells: cells.map((c) => `${c.phase}@${c.epoch}${c.publishing ? '+publishing' : ''}${c.joined ? '+joined' : ''}`),
    groups: groups.map((g) => `${g.groupId}:${g.phase}:${g.members.map((m) => m.phase).join(',')}`),
  }
}
