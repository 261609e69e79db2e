/**
 * @file Training runs whose processes are killed at random, each compared with a run of the same seed that nobody
 * disturbed: the same groups, the same samples, the same weights.
 *
 * phi = 0 and mu = 1, so that the seed alone says what is trained on: every group of a step is sampled from the weights
 * of the step before.
 */
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { seededRng, type Rng } from '../../src/core/rng.ts'
import { presentAttempts } from '../../src/run/ledger.ts'
import type { ExecutionRow, Store } from '../../src/ports/store.ts'
import { type Ended, cellPids, type GyreProcess, killQuietly, type Overrides, Place } from '../support/gyre-process.ts'
import { expectSoundLedger } from '../support/sound-ledger.ts'
import { largestDifference } from './weights.ts'

export interface KillPlan {
  readonly kills: number
  readonly seed: number
  /** Of one run; runs follow each other, each with the next seed, until all kills are done. */
  readonly steps: number
  /** Between two kills, so that a run gets on whatever the machine is. [steps of the run without kills] */
  readonly pauseSteps: readonly [least: number, most: number]
  /** Of the kills that hit the control process; the others hit a cell. */
  readonly controlShare: number
  /** Longest time without a step before a run counts as stuck. [steps of the run without kills] */
  readonly stuckSteps: number
  readonly log: (text: string) => void
}

export const DEFAULT_PLAN = {
  steps: 40,
  pauseSteps: [0.05, 1.2],
  controlShare: 0.3,
  stuckSteps: 100,
} as const satisfies Partial<KillPlan>

export interface KilledRun {
  readonly seed: number
  readonly steps: number
  readonly controlKills: number
  readonly cellKills: number
  readonly seconds: number
  /** Of the run without kills. */
  readonly referenceSeconds: number
  /** Attempts that ended with their control process, each run again. */
  readonly interrupted: number
  /** Optimizer steps that were done again. */
  readonly stepsUndone: number
  /** From a death to the cell serving again. */
  readonly cellRestartMs: readonly number[]
  /** From the start of a control process to the elastic loop. */
  readonly resumeMs: readonly number[]
  /** Of the last checkpoint. */
  readonly sha256: string
  readonly referenceSha256: string
  /** Of two weights; 0 exactly when the files are the same. */
  readonly largestDifference: number
  /** Members whose tokens or reward are not those of the reference. */
  readonly otherSamples: number
  /** Members whose behaviour log-probs are not the same bits. */
  readonly otherEvidence: number
  /** What must never happen; [] is right. */
  readonly problems: readonly string[]
}

const GROUP_SIZE = 3
const GROUPS_PER_STEP = 2
const NAME = 'run'
const CELLS = 2
/** Share of the control processes that are left alone until they train. */
const COMES_UP = 0.75
const LEAST_PATIENCE_MS = 120_000

function overrides({ seed, steps }: { readonly seed: number; readonly steps: number }): Overrides {
  return {
    seed,
    'tasks.generate': { train: 16, heldOut: 1, minStops: 2, maxStops: 3 },
    'rollout.groupSize': GROUP_SIZE,
    'training.groupsPerStep': GROUPS_PER_STEP,
    'training.steps': steps,
    'training.stepsPerBurst': 1,
    'training.advantage': 'grpo',
    'elastic.cells': CELLS,
    // Which groups a step takes must not depend on who was fast.
    'elastic.policy': 'qwengyre',
    'elastic.carryOver': 0,
    'elastic.cellRestarts': 100_000,
  }
}

/** Runs until `plan.kills` processes were killed. Throws nothing: what went wrong is in the runs. */
export async function killRuns(plan: KillPlan): Promise<readonly KilledRun[]> {
  const rng = seededRng(plan.seed)
  const runs: KilledRun[] = []
  for (let done = 0; done < plan.kills;) {
    const run = await killedRun(plan, plan.seed + runs.length, plan.kills - done, rng)
    runs.push(run)
    done += run.controlKills + run.cellKills
    if (run.problems.length > 0 || run.controlKills + run.cellKills === 0) break
  }
  return runs
}

async function killedRun(plan: KillPlan, seed: number, kills: number, rng: Rng): Promise<KilledRun> {
  const reference = new Place()
  const place = new Place()
  try {
    const config = overrides({ seed, steps: plan.steps })
    const since = performance.now()
    const first = await reference.gyre('train', reference.runFile(NAME, config), '--json').ended
    const referenceSeconds = (performance.now() - since) / 1000
    plan.log(`seed ${seed}: ${plan.steps} steps without kills in ${referenceSeconds.toFixed(1)} s`)
    const stepMs = (referenceSeconds / plan.steps) * 1000
    const victim = new Victim(place, place.runFile(NAME, config), { ...plan, stepMs }, rng)
    await victim.live(kills)
    const left = await place.leftovers()
    const problems = [
      ...problemsOfEnd('the run without kills', first),
      ...victim.problems,
      ...left.map((what) => `left behind: ${what}`),
    ]
    if (problems.length === 0) problems.push(...problemsOfBooks(place, plan.steps))
    return { seed, steps: plan.steps, referenceSeconds, ...victim.figures(), ...compare(reference, place, problems) }
  } finally {
    await reference.close()
    await place.close()
  }
}

/** A run under fire. */
class Victim {
  readonly problems: string[] = []
  readonly #place: Place
  readonly #file: string
  readonly #plan: KillPlan & { readonly stepMs: number }
  readonly #rng: Rng
  readonly #since = performance.now()
  readonly #resumeMs: number[] = []
  #startedMs = 0
  #isUp = false
  #controlKills = 0
  #cellKills = 0
  #seconds = 0

  constructor(place: Place, file: string, plan: KillPlan & { readonly stepMs: number }, rng: Rng) {
    this.#place = place
    this.#file = file
    this.#plan = plan
    this.#rng = rng
  }

  /** From the start of the run to its end, over as many control processes as it takes. */
  async live(kills: number): Promise<void> {
    let gyre = this.#start()
    // The cold start begins anew after every kill: let it end once.
    await gyre.until('the first weights', () => this.#hasWeights() || undefined)
    const stuckMs = Math.max(LEAST_PATIENCE_MS, this.#plan.stuckSteps * this.#plan.stepMs)
    let progress = { step: -1, atMs: performance.now() }
    while (!gyre.hasEnded) {
      await Promise.race([sleep(this.#pause()), gyre.ended])
      if (gyre.hasEnded) break
      this.#look()
      const step = this.#step()
      if (step > progress.step) progress = { step, atMs: performance.now() }
      if (performance.now() - progress.atMs > stuckMs) {
        this.problems.push(`no step within ${stuckMs} ms after step ${step}: ${gyre.said()}`)
        gyre.kill('SIGKILL')
        break
      }
      if (this.#controlKills + this.#cellKills < kills && this.#kill(gyre) === 'control') {
        await gyre.ended
        gyre = this.#start('--resume')
        // Most of the time it gets as far as training, else a run hardly moves on.
        if (this.#rng.next() < COMES_UP) await this.#untilUp(gyre)
      }
    }
    this.#look()
    this.#seconds = (performance.now() - this.#since) / 1000
    this.problems.push(...problemsOfEnd('the run with kills', await gyre.ended))
  }

  figures(): Pick<
    KilledRun,
    'controlKills' | 'cellKills' | 'seconds' | 'interrupted' | 'stepsUndone' | 'cellRestartMs' | 'resumeMs'
  > {
    const events = this.#place.events(NAME)
    const numbers = (kind: string, field: string): number[] =>
      events.filter((event) => event['kind'] === kind).map((event) => Number(event[field]))
    return {
      controlKills: this.#controlKills,
      cellKills: this.#cellKills,
      seconds: this.#seconds,
      interrupted: this.#place.ledger(
        NAME,
        (store) => store.executions().filter((row) => row.outcome === 'interrupted').length,
      ),
      stepsUndone: numbers('steps-undone', 'toStep').length,
      cellRestartMs: numbers('cell-recovered', 'durationMs'),
      resumeMs: this.#resumeMs,
    }
  }

  #start(...options: readonly string[]): GyreProcess {
    this.#startedMs = Date.now()
    this.#isUp = false
    return this.#place.gyre('train', this.#file, '--json', ...options)
  }

  /** Kills one process of those that are there. */
  #kill(gyre: GyreProcess): 'control' | 'cell' | undefined {
    const cells = cellPids(gyre.pid).filter((pid) => pid !== undefined)
    const isControl = this.#rng.next() < this.#plan.controlShare
    const pid = isControl ? gyre.pid : cells[this.#rng.below(Math.max(1, cells.length))]
    if (pid === undefined) return undefined
    killQuietly(pid)
    if (isControl) this.#controlKills++
    else this.#cellKills++
    const count = this.#controlKills + this.#cellKills
    const seconds = ((performance.now() - this.#since) / 1000).toFixed(0)
    if (count % 10 === 0) this.#plan.log(`  ${count} kills, step ${this.#step()} of ${this.#plan.steps}, ${seconds} s`)
    return isControl ? 'control' : 'cell'
  }

  #pause(): number {
    const [least, most] = this.#plan.pauseSteps
    return (least + this.#rng.next() * (most - least)) * this.#plan.stepMs
  }

  async #untilUp(gyre: GyreProcess): Promise<void> {
    const endsAt = performance.now() + LEAST_PATIENCE_MS
    while (!this.#isUp && !gyre.hasEnded && performance.now() < endsAt) {
      await sleep(20)
      this.#look()
    }
  }

  /** Notes when a control process has come to the elastic loop. */
  #look(): void {
    if (this.#isUp) return
    const training = this.#place
      .events(NAME)
      .find((e) => e['kind'] === 'stage' && e['stage'] === 'training' && Number(e['atMs']) >= this.#startedMs)
    if (training === undefined) return
    this.#isUp = true
    this.#resumeMs.push(Number(training['atMs']) - this.#startedMs)
  }

  #hasWeights(): boolean {
    if (!existsSync(join(this.#place.run(NAME), 'ledger.sqlite'))) return false
    try {
      return this.#place.ledger(NAME, (store) => store.latestCheckpoint() !== undefined)
    } catch {
      // It is being made.
      return false
    }
  }

  #step(): number {
    return this.#place.ledger(NAME, (store) => store.latestCheckpoint()?.step ?? 0)
  }
}

function problemsOfEnd(what: string, { code, signal, out, err }: Ended): readonly string[] {
  return code === 0 ? [] : [`${what} ended with ${code ?? signal}: ${out.slice(-2000)}${err.slice(-2000)}`]
}

/** Nothing lost, nothing twice, and no harness noticed. */
function problemsOfBooks(place: Place, steps: number): readonly string[] {
  const problems: string[] = []
  const { outcome, trainingSteps, harnessErrors, tokensMismatched } = place.summary(NAME)
  if (outcome !== 'done' || trainingSteps !== steps)
    problems.push(`${String(outcome)} at step ${String(trainingSteps)}`)
  if (harnessErrors !== 0) problems.push(`${String(harnessErrors)} errors seen by a harness`)
  if (tokensMismatched !== 0) problems.push(`${String(tokensMismatched)} calls with other tokens than recorded`)
  for (const event of place.events(NAME)) {
    if (event['kind'] === 'gateway-failure') problems.push(`gateway failure: ${JSON.stringify(event)}`)
  }
  place.ledger(NAME, (store) => {
    try {
      expectSoundLedger(store, { groupSize: GROUP_SIZE, groupsPerStep: GROUPS_PER_STEP, steps })
    } catch (error) {
      problems.push(String(error))
    }
    // A harness that saw an error fails; one whose control process died is interrupted and runs again.
    for (const row of store.executions()) {
      const isOpen = row.state === 'queued'
      if (isOpen || row.outcome === 'finished' || row.outcome === 'interrupted') continue
      problems.push(`execution ${row.executionId}: ${row.state} ${row.outcome ?? ''} ${row.errorMessage ?? ''}`)
    }
  })
  return problems
}

function compare(
  reference: Place,
  place: Place,
  problems: readonly string[],
): Pick<KilledRun, 'sha256' | 'referenceSha256' | 'largestDifference' | 'otherSamples' | 'otherEvidence' | 'problems'> {
  const [referenceWeights, weights] = [reference, place].map(lastWeights)
  if (referenceWeights === undefined || weights === undefined) {
    const unknown = Number.NaN
    const differences = { largestDifference: unknown, otherSamples: unknown, otherEvidence: unknown }
    return { sha256: '', referenceSha256: '', ...differences, problems }
  }
  const [expected, found] = [reference, place].map((each) => each.ledger(NAME, samplesOf))
  const others = (what: keyof Sample): number =>
    [...(expected ?? [])].filter(([member, sample]) => found?.get(member)?.[what] !== sample[what]).length
  return {
    sha256: sha256(weights),
    referenceSha256: sha256(referenceWeights),
    largestDifference: largestDifference(referenceWeights, weights),
    otherSamples: others('tokens'),
    otherEvidence: others('evidence'),
    problems,
  }
}

function lastWeights(place: Place): Buffer | undefined {
  const folder = place.ledger(NAME, (store) => store.latestCheckpoint()?.folder)
  return folder === undefined ? undefined : readFileSync(join(place.run(NAME), folder, 'model.safetensors'))
}

/** Digests of what was sampled with what it earned, and of how likely it was. */
interface Sample {
  readonly tokens: string
  readonly evidence: string
}

/** Of every member of every consumed group. */
function samplesOf(store: Store): ReadonlyMap<string, Sample> {
  const consumed = store.groups().filter((group) => group.state === 'consumed')
  const rows = consumed.flatMap((group) => presentAttempts(store.executions(group.groupId)))
  return new Map(rows.map((row) => [`${row.groupId}-${row.member}`, sampleOf(store, row)]))
}

function sampleOf(store: Store, row: ExecutionRow): Sample {
  const tokens = createHash('sha256').update(`${row.outcome} ${row.reward}`)
  const evidence = createHash('sha256')
  for (const node of store.calls(row.executionId).flatMap((call) => call.nodes)) {
    tokens.update(bytes(node.tokenIds))
    if (node.provenance === 'policy') evidence.update(bytes(node.behaviorLogprobs))
  }
  return { tokens: tokens.digest('hex'), evidence: evidence.digest('hex') }
}

function bytes(values: Int32Array | Float32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
}

function sha256(content: Buffer): string {
  return createHash('sha256').update(content).digest('hex')
}
