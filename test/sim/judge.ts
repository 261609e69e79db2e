/** @file What has to be true of every history, seen from outside the product's own invariants. */
import type { EngineId, ExecutionId, GroupId } from '../../src/core/ids.ts'
import type { Sampled } from '../../src/gateway/sampler.ts'
import type { ExecutionRow } from '../../src/ports/store.ts'
import type { CheckpointSummary, RunSummary } from '../../src/run/controller-types.ts'
import { presentAttempts } from '../../src/run/ledger.ts'
import { stalenessBound } from '../../src/scheduler/staleness.ts'
import type { SchedulerConfig } from '../../src/scheduler/types.ts'
import type { SimBooks } from './books.ts'
import type { Disk } from './engine.ts'
import type { Machine } from './machines.ts'
import { digestOf, evidenceOf, PARAMETERS, weightsAfter } from './policy.ts'
import type { VirtualTime } from './virtual-time.ts'
import { numberOf } from './work.ts'

const MAX_PROBLEMS = 12

export class Judge {
  readonly problems: string[] = []
  readonly #config: SchedulerConfig
  readonly #disk: Disk
  readonly #time: VirtualTime
  readonly #log: (line: string) => void
  /** Published policy version -> digest of its weights. */
  readonly #digests = new Map([[0, digestOf(new Float32Array(PARAMETERS))]])

  constructor(config: SchedulerConfig, disk: Disk, time: VirtualTime, log: (line: string) => void) {
    this.#config = config
    this.#disk = disk
    this.#time = time
    this.#log = log
  }

  accuse(problem: string): void {
    this.#log(`PROBLEM ${problem}`)
    if (this.problems.length < MAX_PROBLEMS) this.problems.push(`${this.#time.now().toFixed(1)} ms: ${problem}`)
  }

  /** I10. */
  harnessSaw(executionId: ExecutionId, error: unknown): void {
    this.accuse(`I10 ${executionId} was told of an error: ${String(error)}`)
  }

  /** Every token says which policy sampled it, and proves it; a later token never has an earlier policy. */
  answered(executionId: ExecutionId, { policyVersions, logprobs }: Sampled): void {
    for (const [at, version] of policyVersions.entries()) {
      const digest = this.#digests.get(version)
      if (digest === undefined) this.accuse(`token ${at} of ${executionId} is of version ${version}: never published`)
      else if (logprobs[at] !== evidenceOf(digest)) {
        this.accuse(`token ${at} of ${executionId} says version ${version} and was sampled with other weights`)
      }
      const previous = policyVersions[at - 1]
      if (previous !== undefined && previous > version) {
        this.accuse(`token ${at} of ${executionId} is of version ${version} after one of ${previous}`)
      }
    }
  }

  /** I2, from the routes alone: nobody owns more executions than it has slots. */
  routed(routes: ReadonlyMap<ExecutionId, EngineId | undefined>, owners: ReadonlySet<ExecutionId>): void {
    const used = new Map<EngineId, number>()
    for (const [executionId, engineId] of routes) {
      if (engineId !== undefined && owners.has(executionId)) used.set(engineId, (used.get(engineId) ?? 0) + 1)
    }
    const { cellSlots, standaloneSlots, overCommit } = this.#config
    for (const [engineId, count] of used) {
      const [kind, index] = engineId.split('-')
      const slots = kind === 'cell' ? cellSlots : (standaloneSlots[Number(index)] ?? 0)
      const most = Math.floor(slots * overCommit)
      if (count > most) this.accuse(`I2 ${engineId} owns ${count} executions and has ${most} slots`)
    }
  }

  assigned(groupId: GroupId, step: number): void {
    this.#log(`${groupId} is cut for step ${step}`)
  }

  /** What is about to be published is whole. */
  published({ step, policyVersion, folder }: CheckpointSummary): void {
    const weights = this.#disk.get(folder)
    if (weights === undefined) {
      this.accuse(`checkpoint ${step} has no weights`)
      return
    }
    this.#digests.set(policyVersion, digestOf(weights))
  }

  judge(summary: RunSummary, books: SimBooks, machines: readonly Machine[]): void {
    const { totalSteps } = this.#config
    if (summary.outcome !== 'done') this.accuse(`the run ended ${summary.outcome}: ${summary.reason}`)
    else if (summary.steps !== totalSteps) this.accuse(`the run ended after ${summary.steps} of ${totalSteps} steps`)
    this.#judgeBooks(books)
    this.#judgeWeights(books, machines)
  }

  #judgeBooks(books: SimBooks): void {
    const { totalSteps, groupsPerStep } = this.#config
    const bound = stalenessBound(this.#config)
    const rows = books.steps()
    const consumed = rows.flatMap((row) => row.groups)
    if (rows.length !== totalSteps) this.accuse(`the books hold ${rows.length} of ${totalSteps} steps`)
    if (new Set(consumed).size !== totalSteps * groupsPerStep) {
      this.accuse(`${new Set(consumed).size} groups were consumed instead of ${totalSteps * groupsPerStep}`)
    }
    const groups = new Map(books.groups().map((group) => [group.groupId, group]))
    for (const { step, groups: ids } of rows) {
      for (const id of ids) {
        const version = groups.get(id)?.dispatchVersion ?? Number.NaN
        if (!(step - 1 - version <= bound)) this.accuse(`I8 step ${step} took ${id} of version ${version}`)
        this.#judgeMembers(id, books.executions(id))
      }
    }
    for (const row of books.executions()) {
      const isOver = row.state === 'scored' || row.state === 'excluded'
      if (!isOver) this.accuse(`execution ${row.executionId} is lost: it is ${row.state}`)
    }
  }

  #judgeMembers(id: GroupId, rows: readonly ExecutionRow[]): void {
    const present = presentAttempts(rows)
    const scored = present.filter((row) => row.state === 'scored').length
    if (present.length !== this.#config.groupSize) this.accuse(`${id} has ${present.length} members`)
    if (scored < Math.min(2, this.#config.groupSize)) this.accuse(`${id} was trained with ${scored} scores`)
    for (const row of present) {
      if (row.outcome === 'interrupted') this.accuse(`${row.executionId} was interrupted and never ran again`)
    }
  }

  /** I7, I9: the weights are those of the steps in the books, to the last bit, everywhere. */
  #judgeWeights(books: SimBooks, machines: readonly Machine[]): void {
    const expected = weightsAfter(books.steps().map((row) => row.groups.map((id) => numberOf(id))))
    const checkpoint = books.latestCheckpoint()
    const saved = this.#disk.get(checkpoint?.folder ?? '')
    if (!isSame(saved, expected))
      this.accuse(`the checkpoint is not the sum of its steps: ${differences(saved, expected)}`)
    for (const { index, process } of machines) {
      // One that died when the run was over is nobody's to bring back.
      if (process === undefined) continue
      const { mode } = process.host.health()
      const { policyVersion, weights } = process.engine
      if (mode !== 'rollout' || policyVersion !== this.#config.totalSteps) {
        this.accuse(`cell ${index} ends in ${mode} with version ${policyVersion}`)
      }
      if (!isSame(weights, expected)) this.accuse(`cell ${index} ends with other weights`)
    }
  }
}

function isSame(a: Float32Array | undefined, b: Float32Array): boolean {
  return a !== undefined && a.length === b.length && a.every((value, at) => Object.is(value, b[at]))
}

function differences(actual: Float32Array | undefined, expected: Float32Array): string {
  if (actual === undefined) return 'there is none'
  const wrong = [...expected.entries()].filter(([at, value]) => actual[at] !== value)
  return wrong.map(([at, value]) => `[${at}] ${actual[at]} instead of ${value}`).join(', ')
}
