/**
 * @file What training on trees saves on recorded sessions of real harnesses, against rows, on the embedded engine.
 *
 *     npm run bench:tree -- --json FILE [--rounds N] [--members N] [--chunk BYTES] [--budget ROWS] [--only TEXT]
 *     ... --group FOLDER  the recordings in a folder, made one by one with other answers, as one group instead
 *
 * Every recording of a compaction or of sub-agents is trained three times with the same targets: as a tree, as one row
 * for each admitted leaf, and as one row for each model call; once for one execution and once for a group of `members`
 * executions of the same task. Rows have no targets twice, and all three fill micro-steps of the same budget. Members
 * are made of one recording: they have the prompt of the first call, tools and system texts in common, and everything
 * from the first turn on is different. Times are medians of the rounds, each ratio of times of the same round.
 */
import { readdirSync, writeFileSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import type { ModelShape } from '../src/kernels/shape.ts'
import type { PackExecution } from '../src/training/forest.ts'
import { packFlat, packMicroSteps } from '../src/training/pack.ts'
import { type Compared, compare, contextCostOf, type FormFigures } from './tree/measure.ts'
import { group, readSession, recordedGroup, type Scale, type Session } from './tree/sessions.ts'

const MODEL: ModelShape = {
  vocabSize: 1024,
  hiddenSize: 128,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 32,
  ffSize: 352,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
/** Qwen3-8B, to say what its attention would make of the same trees. */
const LARGE: ModelShape = { ...MODEL, hiddenSize: 4096, heads: 32, kvHeads: 8, headDim: 128, ffSize: 12_288 }
/** Of one token, in the texts of harnesses. [bytes] */
const BYTES_PER_TOKEN = 4
const GOLDEN = resolve(import.meta.dirname, '../test/golden')
const RECORDING = /-(compaction|sub-agent-compaction|sub-agents|background)$/
const GOAL = 0.25

const { values } = parseArgs({
  options: {
    json: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    members: { type: 'string', default: '8' },
    chunk: { type: 'string', default: '96' },
    budget: { type: 'string', default: '4096' },
    only: { type: 'string', default: '' },
    group: { type: 'string' },
  },
})
const rounds = Number(values.rounds)
const budget = Number(values.budget)
const scale: Scale = { chunk: Number(values.chunk), vocabSize: MODEL.vocabSize }

interface Ratios {
  readonly rows: number
  /** Of CPU time, and of wall time. */
  readonly cpu: number
  readonly wall: number
  /** By the packer's model: attention included, of this model, and of a large one at the full length of the texts. */
  readonly cost: number
  readonly costLarge: number
  readonly gradientError: number
}

function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? Number.NaN
}
const round = (n: number): number => Math.round(n * 1000) / 1000

/** The executions of a step, each with the rows of the form. */
type Rows = (form: 'leaves' | 'calls') => readonly PackExecution[]

function formsOf(rows: Rows, contextCost: number) {
  const options = { maxTokens: budget, contextCost }
  const leaves = rows('leaves')
  return {
    tree: packMicroSteps(leaves, { ...options, mergePrefix: true }),
    leaves: packFlat(leaves, options),
    calls: packFlat(rows('calls'), options),
  }
}

function ratios(compared: Compared, costLarge: Readonly<Record<string, number>>, form: string): Ratios {
  const { tree, [form]: flat } = compared.forms
  if (tree === undefined || flat === undefined) throw new Error(`no figures of ${form}`)
  const ofTimes = (time: 'cpuMs' | 'wallMs'): number =>
    round(median(tree.times.map((own, i) => own[time] / (flat.times[i]?.[time] ?? Number.NaN))))
  return {
    rows: round(tree.rows / flat.rows),
    cpu: ofTimes('cpuMs'),
    wall: ofTimes('wallMs'),
    cost: round(tree.cost / flat.cost),
    costLarge: round((costLarge['tree'] ?? Number.NaN) / (costLarge[form] ?? Number.NaN)),
    gradientError: compared.gradientError[form] ?? Number.NaN,
  }
}

function inShort({ rows, microSteps, targets, times }: FormFigures) {
  return { rows, microSteps, targets, cpuMs: Math.round(median(times.map(({ cpuMs }) => cpuMs))) }
}

async function measure(rows: Rows) {
  const compared = await compare(MODEL, formsOf(rows, contextCostOf(MODEL)), rounds)
  const large = formsOf(rows, (contextCostOf(LARGE) * scale.chunk) / BYTES_PER_TOKEN)
  const costLarge = Object.fromEntries(
    Object.entries(large).map(([name, steps]) => [name, steps.reduce((sum, { cost }) => sum + cost, 0)]),
  )
  return {
    overLeaves: ratios(compared, costLarge, 'leaves'),
    overCalls: ratios(compared, costLarge, 'calls'),
    forms: Object.fromEntries(Object.entries(compared.forms).map(([name, form]) => [name, inShort(form)])),
  }
}

type Figures = Awaited<ReturnType<typeof measure>>

const made = Number(values.members)

async function ofOneRecording(name: string): Promise<Readonly<Record<string, Figures>>> {
  const session = await readSession(join(GOLDEN, name))
  const one = await measure((form) => group(session, form, 1, scale))
  return { one, group: await measure((form) => group(session, form, made, scale)) }
}

async function ofRecordedGroup(folder: string): Promise<Readonly<Record<string, Figures>>> {
  const sessions: Session[] = []
  for (const name of readdirSync(folder).toSorted()) sessions.push(await readSession(join(folder, name)))
  return { group: await measure((form) => recordedGroup(sessions, form, scale)) }
}

const recordings: Record<string, Readonly<Record<string, Figures>>> = {}
function note(name: string, figures: Readonly<Record<string, Figures>>): void {
  recordings[name] = figures
  const ofUnit = (f: Figures): string =>
    [f.overLeaves, f.overCalls].map(({ rows, cpu }) => `${rows} ${cpu}`).join(' | ')
  process.stdout.write(`${name}: rows and CPU time, ${Object.values(figures).map(ofUnit).join(' | ')}\n`)
}
if (values.group === undefined) {
  const names = readdirSync(GOLDEN).filter((name) => RECORDING.test(name) && name.includes(values.only))
  for (const name of names.toSorted()) note(name, await ofOneRecording(name))
} else note(basename(values.group), await ofRecordedGroup(values.group))

const all = Object.values(recordings)
/** Recordings whose time is within the goal, of those that were measured so. */
function within(unit: string, flat: 'overLeaves' | 'overCalls'): string {
  const measured = all.flatMap((figures) => figures[unit] ?? [])
  return `${measured.filter((figures) => figures[flat].cpu <= GOAL).length} of ${measured.length}`
}
const report = {
  command: `npm run bench:tree -- ${process.argv.slice(2).join(' ')}`,
  model: MODEL,
  settings: { rounds, members: values.group === undefined ? made : undefined, chunk: scale.chunk, budget },
  goal: GOAL,
  reached: {
    'one execution, rows of leaves': within('one', 'overLeaves'),
    'one execution, rows of calls': within('one', 'overCalls'),
    'group, rows of leaves': within('group', 'overLeaves'),
    'group, rows of calls': within('group', 'overCalls'),
  },
  worstGradientError: Math.max(
    ...all.flatMap((figures) =>
      Object.values(figures).flatMap((f) => [f.overLeaves.gradientError, f.overCalls.gradientError]),
    ),
  ),
  recordings,
}
process.stdout.write(`${JSON.stringify({ reached: report.reached, worstGradientError: report.worstGradientError })}\n`)
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
