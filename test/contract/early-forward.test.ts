/**
 * @file A step some of whose gradients were computed before their groups were complete is the step without them: the
 * run's real cut, the controller's real commands, real cell processes.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openSqliteStore } from '../../src/adapters/store/sqlite/sqlite-store.ts'
import type { ExecutionId, GroupId } from '../../src/core/ids.ts'
import { seededRng } from '../../src/core/rng.ts'
import { monotonicClock } from '../../src/host/clock.ts'
import type { Cell, HeldResult } from '../../src/ports/cell.ts'
import type { ExecutionRow, Store } from '../../src/ports/store.ts'
import { applyHeld, holdGradient, type EarlyDeps } from '../../src/run/controller-early.ts'
import type { EarlyCut } from '../../src/run/controller-types.ts'
import { FailureWatch } from '../../src/run/failure-watch.ts'
import { GroupLedger } from '../../src/run/ledger.ts'
import { TrainingWork, type WorkDeps } from '../../src/run/work.ts'
import type { ForwardBackwardResult, MicroBatch, Objective, OptimizerParams } from '../../src/training/batch.ts'
import { startCells, type StartedCells } from '../support/cells.ts'
import { call, newTree, system, turn, user } from '../support/trees.ts'

const VOCABULARY = 256
const MODEL = {
  vocabSize: VOCABULARY,
  hiddenSize: 32,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 40,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
/** A clip wider than what untrained weights differ from uniform ones. */
const OBJECTIVE: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.75,
  clipHigh: 3,
  ratioBound: 20,
  entropyWeight: 0,
}
/** So large an epsilon that the first update is the gradient times this, far larger than the weights before it. */
const GAIN = 1e8
const LINEAR: OptimizerParams = {
  learningRate: GAIN * 1e8,
  beta1: 0.9,
  beta2: 0.999,
  epsilon: 1e8,
  weightDecay: 0,
  gradientClip: 0,
}
const MAX_ROWS = 700
const GROUPS = 2
const MEMBERS = 4

interface Member {
  /** Undefined when it is excluded. */
  readonly reward: number | undefined
  /** Whether log-probs when it was sampled leave the clip. */
  readonly far: boolean
  /** Of its conversation, and answers beside it to the first request. */
  readonly calls: number
  readonly branches: number
  /** Cell that keeps its gradient, if any. */
  readonly holder: number | undefined
}
type Scenario = readonly (readonly Member[])[]

let started: StartedCells
let folder: string
let epoch = 1

const cellAt = (index: number): Cell => {
  const cell = started.supervisor.cells[index]
  if (cell === undefined) throw new Error(`there is no cell ${index}`)
  return cell
}

beforeAll(async () => {
  started = await startCells('embedded-cell.ts', 2, {
    engine: (index) => ({ model: MODEL, slots: 2, maxContext: 1024, maxTrainTokens: 1024, seed: index, threads: 1 }),
  })
  folder = mkdtempSync(join(started.folder, 'start-'))
  await cellAt(0).saveCheckpoint(epoch, folder)
})
afterAll(() => started.close())

/** The books of one step, whose executions are running. */
class Books {
  readonly store: Store
  readonly work: TrainingWork
  readonly rows: readonly (readonly ExecutionRow[])[]
  readonly #folder = mkdtempSync(join(tmpdir(), 'gyre-early-'))

  constructor() {
    this.store = openSqliteStore(join(this.#folder, 'ledger.sqlite'))
    const task = { name: 'task', folder: '/', instruction: 'go', agentTimeoutMs: 1, verifierTimeoutMs: 1 }
    const ledger = new GroupLedger(this.store, [task], 7, MEMBERS, 0)
    this.rows = ledger.create(GROUPS, 0, 0).map(({ members }) => members)
    this.work = new TrainingWork(
      {
        store: this.store,
        ledger,
        // No execution is run: their calls are written as a gateway would.
        execution: {} as WorkDeps['execution'],
        settings: {
          seed: 5,
          groupsPerStep: GROUPS,
          advantage: 'grpo',
          jMax: 4,
          maxTrajectoryTokens: MAX_ROWS,
          maxMicroStepTokens: MAX_ROWS,
          microStepsPerGroup: 2,
          objective: OBJECTIVE,
          optimizer: () => LINEAR,
        },
        clock: monotonicClock,
        checkpointFolder: () => this.#folder,
        relativeFolder: (path) => path,
        onStep: () => undefined,
        onExecution: () => undefined,
        onCheckpoint: () => undefined,
      },
      new FailureWatch(),
    )
  }

  /** Its calls, and how it ended. */
  async end(group: number, member: number, { far, calls, branches, reward }: Member): Promise<ExecutionRow> {
    const row = this.rows[group]?.[member]
    if (row === undefined) throw new Error(`there is no member ${member}`)
    const rng = seededRng(100 * group + member)
    const tree = newTree(row.executionId)
    const request = [system('You are an agent.'), user(`task ${group}`)]
    const say = async (items: typeof request, of: string): Promise<ReturnType<typeof turn>> => {
      const reply = turn(`${of} ${Array.from({ length: 40 }, () => rng.below(10)).join('')}`)
      const tokens = Array.from({ length: 60 }, () => 3 + rng.below(VOCABULARY - 3))
      const shifts = far ? [0, 2.2, -0.1, -2.2, 5] : [0, 0.1, -0.1, 0.15]
      const logprobs = tokens.map((_, i) => -Math.log(VOCABULARY) - (shifts[i % shifts.length] ?? 0))
      const id = `${row.executionId}/${tree.nextSequence}`
      await this.store.appendCall(call(tree, items, reply, { id, tokens, logprobs }))
      return reply
    }
    for (let branch = 0; branch < branches; branch++) await say(request, `beside ${branch}`)
    let items = request
    for (let i = 0; i < calls; i++) items = [...items, await say(items, `turn ${i}`), user(`go on ${i}`)]
    const ended: ExecutionRow = {
      ...row,
      state: reward === undefined ? 'excluded' : 'scored',
      outcome: reward === undefined ? 'evaluation-failed' : 'finished',
      reward,
    }
    this.store.putExecution(ended)
    return ended
  }

  close(): void {
    this.store.close()
    rmSync(this.#folder, { recursive: true })
  }
}

interface Trained {
  /** [P] */
  readonly gradient: Float32Array
  readonly sums: Readonly<Record<'loss' | 'entropy' | 'clipped' | 'masked' | 'targets', number>>
}

/** The gradient of a step from the checkpoint. @param work gives what its micro-steps gave. */
async function train(work: () => Promise<readonly ForwardBackwardResult[]>): Promise<Trained> {
  epoch += 1
  await cellAt(0).loadCheckpoint(epoch, folder, 0)
  await cellAt(0).zeroGradients(epoch)
  await cellAt(1).pullWeights(epoch, cellAt(0).address, 0)
  await cellAt(1).zeroGradients(epoch)
  const results = await work()
  await cellAt(0).reduceGradients(epoch, [cellAt(1).address])
  await cellAt(0).optimizerStep(epoch, 'step', LINEAR)
  const saved = mkdtempSync(join(started.folder, 'end-'))
  await cellAt(0).saveCheckpoint(epoch, saved)
  const before = weightsOf(folder)
  const gradient = weightsOf(saved).map((w, i) => ((before[i] ?? NaN) - w) / GAIN)
  rmSync(saved, { recursive: true })
  const sum = (of: (result: ForwardBackwardResult) => number): number => results.reduce((a, r) => a + of(r), 0)
  const sums = {
    loss: sum((r) => r.loss),
    entropy: sum((r) => r.entropy),
    clipped: sum((r) => r.clippedTokens),
    masked: sum((r) => r.maskedTokens),
    targets: sum((r) => r.logprobs.length),
  }
  return { gradient, sums }
}

/** The numbers of a safetensors file, in the order of the file. */
function weightsOf(path: string): Float32Array {
  const bytes = readFileSync(join(path, 'model.safetensors'))
  return new Float32Array(Uint8Array.from(bytes.subarray(8 + Number(bytes.readBigUInt64LE()))).buffer)
}

interface HeldOnce {
  readonly cell: number
  readonly batch: MicroBatch
  readonly result: HeldResult
  readonly key: string
}

interface Early extends Trained {
  readonly held: ReadonlyMap<ExecutionId, HeldOnce>
  readonly cuts: readonly EarlyCut[]
  /** Claims of a kept gradient that its cell refused. */
  readonly refused: readonly ExecutionId[]
}

/** As `train`, but members of the step keep gradients as soon as an execution is scored. */
async function trainEarly(books: Books, scenario: Scenario, order: readonly number[]): Promise<Early> {
  const held = new Map<ExecutionId, HeldOnce>()
  const cuts: EarlyCut[] = []
  const refused: ExecutionId[] = []
  const trained = await train(async () => {
    for (const at of order) await endAndHold(books, scenario, at, held)
    const results: ForwardBackwardResult[] = []
    for (const members of books.rows) {
      const groupId = members[0]?.groupId as GroupId
      const ids = new Set(members.map((row) => row.executionId))
      const cut = await books.work.early.microSteps(
        groupId,
        0,
        [...held.keys()].filter((id) => ids.has(id)),
      )
      cuts.push(cut)
      for (const [index, batch] of cut.batches.entries()) {
        const own = cut.held.find((h) => h.index === index)
        const holder = own === undefined ? undefined : held.get(own.executionId)
        const claim = { groupId, index, key: `${groupId}/${index}`, held: holder?.key ?? '' }
        if (own !== undefined && holder !== undefined) {
          const to = { cell: holder.cell, epoch, step: 0, attempt: 0 }
          const answer = await applyHeld(earlyDeps(books, holder.cell), { kind: 'apply-held', ...to, claim }, own.scale)
          if (answer.kind === 'micro-step-done') {
            results.push(own.result)
            continue
          }
          refused.push(own.executionId)
        }
        results.push(await cellAt(index % 2).forwardBackward(epoch, claim.key, batch, OBJECTIVE))
      }
    }
    return results
  })
  return { ...trained, held, cuts, refused }
}

const earlyDeps = ({ work }: Books, cell: number): EarlyDeps => ({
  cell: cellAt(cell),
  work,
  within: (promise) => promise,
})

async function endAndHold(
  books: Books,
  scenario: Scenario,
  at: number,
  held: Map<ExecutionId, HeldOnce>,
): Promise<void> {
  const group = Math.floor(at / MEMBERS)
  const member = scenario[group]?.[at % MEMBERS]
  if (member === undefined) throw new Error(`nobody is ${at}`)
  const { executionId, groupId } = await books.end(group, at % MEMBERS, member)
  if (member.holder === undefined || member.reward === undefined) return
  const kept: { batch?: MicroBatch | undefined; result?: HeldResult } = {}
  const cell = member.holder
  const key = `early.${at}`
  const { early } = books.work
  const deps = earlyDeps(books, cell)
  // As the run's work, but what is kept is looked at.
  const seen: EarlyDeps['work'] = Object.create(books.work, {
    early: {
      value: {
        batch: (id: ExecutionId) => (kept.batch = early.batch(id)),
        held: (id: ExecutionId, step: number, batch: MicroBatch, result: HeldResult) => {
          kept.result = result
          early.held(id, step, batch, result)
        },
      },
    },
    objective: { value: () => OBJECTIVE },
  })
  const answer = await holdGradient(
    { ...deps, work: seen },
    { kind: 'hold-gradient', cell, epoch, step: 0, early: { groupId, executionId, key } },
  )
  if (answer.kind !== 'gradient-held' || kept.batch === undefined || kept.result === undefined) return
  held.set(executionId, { cell, batch: kept.batch, result: kept.result, key })
}

/** The same step, once with early work and once without. */
async function both(scenario: Scenario, order: readonly number[]): Promise<{ early: Early; direct: Trained }> {
  const books = new Books()
  try {
    const early = await trainEarly(books, scenario, order)
    const direct = await train(async () => {
      const results: ForwardBackwardResult[] = []
      for (const members of books.rows) {
        const groupId = members[0]?.groupId as GroupId
        for (const [i, batch] of (await books.work.microSteps(groupId, 0)).entries()) {
          results.push(await cellAt(i % 2).forwardBackward(epoch, `${groupId}/${i}`, batch, OBJECTIVE))
        }
      }
      return results
    })
    return { early, direct }
  } finally {
    books.close()
  }
}

function largest(values: Float32Array): number {
  return values.reduce((top, value) => Math.max(top, Math.abs(value)), 0)
}

function expectSameStep({ early, direct }: { readonly early: Early; readonly direct: Trained }): void {
  const scale = largest(direct.gradient)
  const distance = largest(direct.gradient.map((g, i) => g - (early.gradient[i] ?? NaN)))
  // Both round to float32 on their way, and executions of opposite advantage cancel: 1.2e-6 of the sum was seen.
  expect(distance).toBeLessThanOrEqual(5e-6 * scale)
  expect(early.sums).toMatchObject({ clipped: direct.sums.clipped, masked: direct.sums.masked })
  expect(early.sums.targets).toBe(direct.sums.targets)
  expect(early.sums.loss).toBeCloseTo(direct.sums.loss, 5)
  expect(early.sums.entropy).toBeCloseTo(direct.sums.entropy, 5)
  expect(early.refused).toEqual([])
  for (const { batches, held } of early.cuts) for (const own of held) expectKeptIsCut(early, batches[own.index], own)
}

/** But for its weights and its advantage, what was kept is the micro-step that was cut. */
function expectKeptIsCut(early: Early, batch: MicroBatch | undefined, own: EarlyCut['held'][number]): void {
  const kept = early.held.get(own.executionId)
  if (kept === undefined || batch === undefined) throw new Error(`${own.executionId} was kept and cut`)
  const { targetAdvantages, targetWeights } = batch
  expect({ ...kept.batch, targetAdvantages, targetWeights }).toEqual(batch)
  expect(own.result.logprobs).toBe(kept.result.logprobs)
  targetWeights.forEach((w, i) => expect(w * (targetAdvantages[i] ?? NaN)).toBeCloseTo(own.scale, 8))
}

const PLAIN: Member = { reward: 0, far: false, calls: 2, branches: 0, holder: undefined }
const IN_ORDER = [...Array(GROUPS * MEMBERS).keys()]
const QUIET: readonly Member[] = [0, 1, 1, 0].map((reward) => ({ ...PLAIN, reward }))

/** The member that was looked at first seemed good, until its siblings were better. */
const outdone = (far: boolean): Scenario => [
  [{ ...PLAIN, reward: 0.5, far, holder: 1 }, ...[1, 1, 1].map((reward) => ({ ...PLAIN, reward }))],
  QUIET,
]

test('a wrongly guessed sign is no loss while no target is outside the clip', async () => {
  const result = await both(outdone(false), IN_ORDER)
  expectSameStep(result)
  const [kept] = result.early.held.values()
  expect(kept?.result.outsideTokens).toBe(0)
  expect(kept?.batch.targetAdvantages[0]).toBe(1)
  const own = result.early.cuts[0]?.held
  expect(own).toHaveLength(1)
  expect(own?.[0]?.scale).toBeLessThan(0)
})

test('beyond the clip, a gradient of the wrong sign is not used', async () => {
  const result = await both(outdone(true), IN_ORDER)
  expectSameStep(result)
  const [kept] = result.early.held.values()
  expect(kept?.result.outsideTokens).toBeGreaterThan(0)
  expect(result.early.cuts.flatMap((cut) => cut.held)).toEqual([])
})

test('beyond the clip, a gradient of the right sign is used', async () => {
  const [first, ...others] = outdone(true)[0] ?? []
  if (first === undefined) throw new Error('there is a first member')
  const result = await both([[{ ...first, reward: 1 }, { ...PLAIN }, ...others.slice(1)], QUIET], IN_ORDER)
  expectSameStep(result)
  expect(Math.min(result.early.sums.clipped, result.early.sums.masked)).toBeGreaterThan(0)
  expect(result.early.cuts[0]?.held).toHaveLength(1)
})

test('a group all of whose members are kept has nothing else to compute', async () => {
  const all = QUIET.map((member, i) => ({ ...member, holder: i % 2 }))
  const result = await both([all, QUIET], IN_ORDER)
  expectSameStep(result)
  expect(result.early.cuts.map((cut) => [cut.batches.length, cut.held.length])).toEqual([
    [4, 4],
    [2, 0],
  ])
})

test('an execution that needs several micro-steps is not kept', async () => {
  const wide = { ...PLAIN, reward: 1, branches: 3, calls: 6, holder: 0 }
  const result = await both([[wide, PLAIN, PLAIN, PLAIN], QUIET], IN_ORDER)
  expectSameStep(result)
  expect(result.early.held.size).toBe(0)
})

test('a late answer of the step before takes nothing from the step that is open', async () => {
  const books = new Books()
  try {
    for (const [i, member] of QUIET.entries()) await books.end(0, i, member)
    const [open, late] = books.rows[0] ?? []
    if (open === undefined || late === undefined) throw new Error('there are members')
    const { early } = books.work
    for (const [{ executionId }, step] of [[open, 1] as const, [late, 0] as const]) {
      const batch = early.batch(executionId)
      if (batch === undefined) throw new Error(`${executionId} can be kept`)
      const logprobs = new Float32Array(batch.targetIds.length)
      const result = { loss: 0, entropy: 0, logprobs, clippedTokens: 0, maskedTokens: 0, outsideTokens: 0 }
      early.held(executionId, step, batch, result)
    }
    const cut = await early.microSteps(open.groupId, 1, [open.executionId, late.executionId])
    expect(cut.held.map((own) => own.executionId)).toEqual([open.executionId])
  } finally {
    books.close()
  }
})

test('whatever is kept by whom, and in whatever order executions are scored, the step is the same', async () => {
  const member = fc.record({
    reward: fc.constantFrom(0, 0, 0.5, 1, 1, undefined),
    far: fc.boolean(),
    calls: fc.integer({ min: 1, max: 3 }),
    branches: fc.nat(1),
    holder: fc.constantFrom(undefined, 0, 1, 1),
  })
  const members = fc.array(member, { minLength: MEMBERS, maxLength: MEMBERS })
  const scenario = fc.array(members, { minLength: GROUPS, maxLength: GROUPS })
  const order = fc.shuffledSubarray(IN_ORDER, { minLength: IN_ORDER.length })
  let served = 0
  await fc.assert(
    fc.asyncProperty(scenario, order, async (plan, ends) => {
      const result = await both(plan, ends)
      expectSameStep(result)
      served += result.early.cuts.flatMap((cut) => cut.held).length
    }),
    { numRuns: 12 },
  )
  expect(served).toBeGreaterThan(0)
})
