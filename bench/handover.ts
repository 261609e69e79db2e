/**
 * @file What a hand-over of caches saves when every execution of a cell moves to another: two real cells.
 *
 *     npm run bench:handover -- --json FILE [--executions N] [--rounds N]
 *
 * In each round the same executions generate on one cell and move in their middle, once with hand-over (blocks go over
 * while the source generates on, then it is cancelled) and once without. The stall is the time from the cancellation
 * until every moved execution has its next token. Medians of the rounds; the ratios compare times of the same round.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { CellProcessSupervisor } from '../src/adapters/cell/process/supervisor.ts'
import { executionId } from '../src/core/ids.ts'
import { seededRng } from '../src/core/rng.ts'
import type { Cell } from '../src/ports/cell.ts'
import type { ModelShape } from '../src/kernels/shape.ts'

const common = { layers: 4, heads: 4, kvHeads: 2, ropeTheta: 10_000, normEpsilon: 1e-5 } as const
const MODELS: Readonly<Record<string, ModelShape>> = {
  '0.85M': { ...common, vocabSize: 1024, hiddenSize: 128, headDim: 32, ffSize: 352 },
  '4.0M': { ...common, vocabSize: 4096, hiddenSize: 256, headDim: 64, ffSize: 704 },
}
/** Tokens of each execution's context, and how many of them all have in common. */
const CONTEXTS = [
  { tokens: 500, shared: 0 },
  { tokens: 1000, shared: 0 },
  { tokens: 1000, shared: 500 },
  { tokens: 2000, shared: 0 },
] as const
/** Tokens that every execution has sampled before the move begins. */
const BEFORE = 4

const { values } = parseArgs({
  options: {
    json: { type: 'string' },
    executions: { type: 'string', default: '8' },
    rounds: { type: 'string', default: '3' },
  },
})
const executions = Number(values.executions)
const rounds = Number(values.rounds)
const rng = seededRng(1)

interface Move {
  /** Pin and fetch, while the source generates. [ms] */
  readonly handoverMs: number
  /** From the cancellation to the last execution's next token. [ms] */
  readonly stallMs: number
  readonly bytes: number
  /** Sampled at the source during the hand-over. */
  readonly tokensMeanwhile: number
}

/** One execution: where it is, and what it has. */
class Mover {
  readonly id
  readonly #tokens: number[]
  readonly #seed: number

  constructor(name: string, prompt: readonly number[], seed: number) {
    this.id = executionId(name)
    this.#tokens = [...prompt]
    this.#seed = seed
  }

  get length(): number {
    return this.#tokens.length
  }

  /** Generates until `signal` aborts; resolves at its end. */
  async run(cell: Cell, signal: AbortSignal, onToken: () => void): Promise<void> {
    const sampling = { maxTokens: 10_000, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: this.#seed }
    const promptIds = Int32Array.from(this.#tokens)
    const request = { requestId: this.id, executionId: this.id, promptIds, sampling }
    try {
      for await (const event of cell.generate(request, signal)) {
        if (event.kind === 'tokens') this.#tokens.push(...event.tokenIds)
        onToken()
      }
    } catch (error) {
      if (!signal.aborted) throw error
    }
  }
}

/** Starts all on a cell; `ready` resolves when each has sampled `count` tokens there. */
function runAll(movers: readonly Mover[], cell: Cell, count: number) {
  const stop = new AbortController()
  let ready = Promise.resolve()
  const ends = movers.map((mover) => {
    const goal = mover.length + count
    let reached: (() => void) | undefined
    const own = new Promise<void>((done) => (reached = done))
    ready = ready.then(() => own)
    return mover.run(cell, stop.signal, () => {
      if (mover.length >= goal) reached?.()
    })
  })
  const end = async (): Promise<void> => {
    stop.abort()
    await Promise.all(ends)
  }
  return { ready, end }
}

const lengthOf = (movers: readonly Mover[]): number => movers.reduce((sum, m) => sum + m.length, 0)

async function move(from: Cell, to: Cell, movers: readonly Mover[], withBlocks: boolean): Promise<Move> {
  // Replacing weights, though by equal ones, empties the caches.
  await to.pullWeights(1, from.address, 0)
  await from.pullWeights(1, to.address, 0)
  const source = runAll(movers, from, BEFORE)
  await source.ready
  const ids = movers.map((m) => m.id)
  const [startedAt, before] = [performance.now(), lengthOf(movers)]
  let bytes = 0
  if (withBlocks) {
    await from.pinKv(1, ids, 60_000)
    const fetched = await to.fetchKv(1, from.address, ids)
    if (fetched.executions < movers.length) throw new Error(`only ${fetched.executions} executions went over`)
    bytes = fetched.bytes
  }
  const [cancelledAt, after] = [performance.now(), lengthOf(movers)]
  await source.end()
  const destination = runAll(movers, to, 1)
  await destination.ready
  const stallMs = performance.now() - cancelledAt
  await destination.end()
  await from.releaseKv(1)
  return { handoverMs: cancelledAt - startedAt, stallMs, bytes, tokensMeanwhile: after - before }
}

function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? Number.NaN
}
const round = (n: number): number => Math.round(n * 10) / 10

async function measure(from: Cell, to: Cell, vocabSize: number, tokens: number, shared: number) {
  const random = (length: number): number[] => Array.from({ length }, () => rng.below(vocabSize))
  const pairs: { readonly kept: Move; readonly recomputed: Move }[] = []
  for (let i = 0; i < rounds; i++) {
    const beginning = random(shared)
    const prompts = Array.from({ length: executions }, () => [...beginning, ...random(tokens - shared)])
    const movers = (): Mover[] => prompts.map((prompt, n) => new Mover(`x${n}`, prompt, n))
    const recomputed = await move(from, to, movers(), false)
    pairs.push({ recomputed, kept: await move(from, to, movers(), true) })
  }
  const of = (value: (pair: (typeof pairs)[number]) => number): number => round(median(pairs.map(value)))
  return {
    recomputeStallMs: of((p) => p.recomputed.stallMs),
    handoverStallMs: of((p) => p.kept.stallMs),
    handoverMs: of((p) => p.kept.handoverMs),
    stallRatio: of((p) => p.recomputed.stallMs / p.kept.stallMs),
    /** The hand-over counted as if nobody had generated meanwhile. */
    totalRatio: of((p) => p.recomputed.stallMs / (p.kept.handoverMs + p.kept.stallMs)),
    mebibytes: of((p) => p.kept.bytes / 2 ** 20),
    mebibytesPerSecond: of((p) => p.kept.bytes / 2 ** 20 / (p.kept.handoverMs / 1000)),
    tokensMeanwhile: of((p) => p.kept.tokensMeanwhile),
  }
}

const report: Record<string, Awaited<ReturnType<typeof measure>>> = {}
const folder = mkdtempSync(join(tmpdir(), 'gyre-bench-'))
try {
  for (const [name, model] of Object.entries(MODELS)) {
    const supervisor = await CellProcessSupervisor.start({
      count: 2,
      slots: executions,
      argv: [process.execPath, resolve(import.meta.dirname, '../dist/cli/main.js'), 'cell'],
      engine: () => ({ model: { ...model }, slots: executions, maxContext: 4096, maxTrainTokens: 128, seed: 1 }),
      logFolder: folder,
      deadlines: { handover: 120_000 },
    })
    try {
      const [from, to] = supervisor.cells
      if (from === undefined || to === undefined) throw new Error('two cells were asked for')
      await Promise.all([from.enterRollout(1), to.enterRollout(1)])
      for (const { tokens, shared } of CONTEXTS) {
        const what = `${name}, ${executions} executions of ${tokens} tokens${shared > 0 ? `, ${shared} in common` : ''}`
        report[what] = await measure(from, to, model.vocabSize, tokens, shared)
        process.stdout.write(`${what}\n  ${JSON.stringify(report[what])}\n`)
      }
    } finally {
      await supervisor.close()
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
