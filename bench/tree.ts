/**
 * @file What training on trees saves on recorded sessions of real harnesses, against rows, on the embedded engine.
 *
 *     npm run bench:tree -- --json FILE [--rounds N] [--members N] [--chunk BYTES] [--budget ROWS] [--only TEXT]
 *
 * Every recording of a compaction or of sub-agents is trained three times with the same targets: as a tree, as one row
 * for each admitted leaf, and as one row for each model call; once for one execution and once for a group of `members`
 * executions of the same task. Rows have no targets twice, and all three fill micro-steps of the same budget. Members
 * are made of one recording: they have the prompt of the first call, tools and system texts in common, and everything
 * from the first turn on is different. Times are medians of the rounds, each ratio of times of the same round.
 */
import { readdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import type { ModelShape } from '../src/kernels/shape.ts'
import { packFlat, packMicroSteps } from '../src/training/pack.ts'
import { type Compared, compare, contextCostOf, type FormFigures } from './tree/measure.ts'
import { group, readSession, type Scale, type Session } from './tree/sessions.ts'

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

function formsOf(session: Session, members: number, contextCost: number) {
  const options = { maxTokens: budget, contextCost }
  const leaves = group(session, 'leaves', members, scale)
  return {
    tree: packMicroSteps(leaves, { ...options, mergePrefix: true }),
    leaves: packFlat(leaves, options),
    calls: packFlat(group(session, 'calls', members, scale), options),
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

async function measure(session: Session, members: number) {
  const compared = await compare(MODEL, formsOf(session, members, contextCostOf(MODEL)), rounds)
  const large = formsOf(session, members, (contextCostOf(LARGE) * scale.chunk) / BYTES_PER_TOKEN)
  const costLarge = Object.fromEntries(
    Object.entries(large).map(([name, steps]) => [name, steps.reduce((sum, { cost }) => sum + cost, 0)]),
  )
  return {
    overLeaves: ratios(compared, costLarge, 'leaves'),
    overCalls: ratios(compared, costLarge, 'calls'),
    forms: Object.fromEntries(Object.entries(compared.forms).map(([name, form]) => [name, inShort(form)])),
  }
}

const names = readdirSync(GOLDEN).filter((name) => RECORDING.test(name) && name.includes(values.only))
const members = Number(values.members)
const recordings: Record<string, Readonly<Record<string, Awaited<ReturnType<typeof measure>>>>> = {}
for (const name of names.toSorted()) {
  const session = await readSession(join(GOLDEN, name))
  const one = await measure(session, 1)
  const many = await measure(session, members)
  recordings[name] = { one, group: many }
  const line = [one.overLeaves, one.overCalls, many.overLeaves, many.overCalls].map(({ rows, cpu }) => `${rows} ${cpu}`)
  process.stdout.write(`${name}: rows and CPU time, ${line.join(' | ')}\n`)
}

const all = Object.values(recordings)
/** Recordings whose time is within the goal, under each meaning of "flat". */
const within = (unit: 'one' | 'group', flat: 'overLeaves' | 'overCalls'): string =>
  `${all.filter((figures) => (figures[unit]?.[flat].cpu ?? Infinity) <= GOAL).length} of ${all.length}`
const report = {
  command: `npm run bench:tree -- ${process.argv.slice(2).join(' ')}`,
  model: MODEL,
  settings: { rounds, members, chunk: scale.chunk, budget },
  goal: GOAL,
  reached: {
    'one execution, rows of leaves': within('one', 'overLeaves'),
    'one execution, rows of calls': within('one', 'overCalls'),
    [`group of ${members}, rows of leaves`]: within('group', 'overLeaves'),
    [`group of ${members}, rows of calls`]: within('group', 'overCalls'),
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
