/**
 * @file Speed of the embedded engine: training, decoding, prefill, on two models, with one and two threads.
 *
 *     npx tsx bench/engine.ts [--json FILE] [--rounds N]
 *
 * Best of the rounds, per second of wall time and per second of CPU time of all threads: on a busy machine the
 * first says what was left for us, the second what the work costs.
 */
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { createEmbeddedEngine, type EmbeddedEngine } from '../src/adapters/engine/embedded/embedded-engine.ts'
import { executionId } from '../src/core/ids.ts'
import { seededRng } from '../src/core/rng.ts'
import type { ModelShape } from '../src/kernels/shape.ts'
import type { MicroBatch } from '../src/training/batch.ts'

const common = { layers: 4, heads: 4, kvHeads: 2, ropeTheta: 10_000, normEpsilon: 1e-5 } as const
const MODELS: Readonly<Record<string, ModelShape>> = {
  quickstart: { ...common, vocabSize: 1024, hiddenSize: 128, headDim: 32, ffSize: 352 },
  '4.0M': { ...common, vocabSize: 4096, hiddenSize: 256, headDim: 64, ffSize: 704 },
}
const CONTEXT = 1024

const { values } = parseArgs({ options: { json: { type: 'string' }, rounds: { type: 'string', default: '3' } } })
const rounds = Number(values.rounds)
const rng = seededRng(1)

/** `count` causal sequences of equal length behind one another; every token but the first of each is a target. */
function packed(shape: ModelShape, tokens: number, count: number): MicroBatch {
  const length = tokens / count
  const rows = [...Array(tokens).keys()]
  const targets = rows.filter((i) => i % length > 0)
  const tokenIds = Int32Array.from(rows, () => rng.below(shape.vocabSize))
  return {
    tokenIds,
    positions: Int32Array.from(rows, (i) => i % length),
    subtreeEnd: Int32Array.from(rows, (i) => (Math.floor(i / length) + 1) * length),
    targetRows: Int32Array.from(targets, (i) => i - 1),
    targetIds: Int32Array.from(targets, (i) => tokenIds[i] ?? 0),
    targetWeights: new Float32Array(targets.length).fill(1 / targets.length),
    targetAdvantages: new Float32Array(targets.length).fill(1),
    targetBehaviorLogprobs: new Float32Array(targets.length).fill(-6),
  }
}

/** 16 branches of 64 tokens that share a prefix of 1,024: what a group's tree looks like. Only branches are targets. */
function tree(shape: ModelShape): MicroBatch {
  const [prefix, branches, length] = [1024, 16, 64]
  const rows = [...Array(prefix + branches * length).keys()]
  const inBranch = (i: number): number => (i - prefix) % length
  const targets = rows.slice(prefix)
  const tokenIds = Int32Array.from(rows, () => rng.below(shape.vocabSize))
  return {
    tokenIds,
    positions: Int32Array.from(rows, (i) => (i < prefix ? i : prefix + inBranch(i))),
    subtreeEnd: Int32Array.from(rows, (i) => (i < prefix ? rows.length : i - inBranch(i) + length)),
    targetRows: Int32Array.from(targets, (i) => (inBranch(i) === 0 ? prefix - 1 : i - 1)),
    targetIds: Int32Array.from(targets, (i) => tokenIds[i] ?? 0),
    targetWeights: new Float32Array(targets.length).fill(1 / targets.length),
    targetAdvantages: new Float32Array(targets.length).fill(1),
    targetBehaviorLogprobs: new Float32Array(targets.length).fill(-7),
  }
}

interface Rate {
  /** [tokens per second] */
  readonly wall: number
  /** [tokens per CPU second] */
  readonly cpu: number
}

/** Milliseconds of wall time and of CPU time since `start`. */
interface Mark {
  readonly wall: number
  readonly cpu: number
}
function now(): Mark {
  const { user, system } = process.cpuUsage()
  return { wall: performance.now(), cpu: (user + system) / 1000 }
}

/** Best rates over the rounds. @param work returns the tokens done and when the clock started. */
async function best(work: () => Promise<readonly [tokens: number, start: Mark]>): Promise<Rate> {
  const top = { wall: 0, cpu: 0 }
  for (let i = 0; i < rounds; i++) {
    const [tokens, start] = await work()
    const end = now()
    top.wall = Math.max(top.wall, Math.round((tokens * 1000) / (end.wall - start.wall)))
    top.cpu = Math.max(top.cpu, Math.round((tokens * 1000) / (end.cpu - start.cpu)))
  }
  return top
}

async function train(engine: EmbeddedEngine, batch: MicroBatch): Promise<readonly [number, Mark]> {
  const start = now()
  await engine.forwardBackward(batch, { kind: 'cross-entropy' })
  await engine.optimizerStep({
    learningRate: 1e-4,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weightDecay: 0,
    gradientClip: 1,
  })
  return [batch.tokenIds.length, start]
}

/** Generates and calls `onTokens` as tokens come. */
async function generate(
  engine: EmbeddedEngine,
  promptIds: Int32Array,
  maxTokens: number,
  onTokens: (n: number) => void,
): Promise<void> {
  const sampling = { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: rng.below(2 ** 31) }
  const request = { requestId: 'bench', executionId: executionId('bench'), promptIds, sampling }
  for await (const event of engine.generate(request, new AbortController().signal)) {
    if (event.kind === 'tokens') onTokens(event.tokenIds.length)
  }
}

/** Tokens after every sequence has its first one, so that prefill does not count. */
async function decode(engine: EmbeddedEngine, batch: number): Promise<readonly [number, Mark]> {
  const length = 128
  const prompt = randomPrompt(engine, CONTEXT - length / 2)
  let waiting = batch
  let start = now()
  let count = 0
  const one = async (): Promise<void> => {
    let isFirst = true
    await generate(engine, prompt, length, (n) => {
      if (waiting === 0) count += n
      if (isFirst && --waiting === 0) start = now()
      isFirst = false
    })
  }
  await Promise.all(Array.from({ length: batch }, one))
  return [count, start]
}

async function prefill(engine: EmbeddedEngine): Promise<readonly [number, Mark]> {
  const start = now()
  await generate(engine, randomPrompt(engine, CONTEXT), 1, () => {})
  return [CONTEXT, start]
}

function randomPrompt(engine: EmbeddedEngine, length: number): Int32Array {
  return Int32Array.from({ length }, () => rng.below(engine.vocabSize))
}

async function measure(shape: ModelShape, threads: number): Promise<Record<string, Rate>> {
  const engine = await createEmbeddedEngine({
    model: shape,
    threads,
    slots: 16,
    maxContext: 2048,
    maxTrainTokens: 2048,
  })
  try {
    return {
      'train T=2048 one sequence': await best(() => train(engine, packed(shape, 2048, 1))),
      'train T=1024 one sequence': await best(() => train(engine, packed(shape, 1024, 1))),
      'train T=2048 8 sequences': await best(() => train(engine, packed(shape, 2048, 8))),
      'train T=2048 tree': await best(() => train(engine, tree(shape))),
      'decode B=1': await best(() => decode(engine, 1)),
      'decode B=16': await best(() => decode(engine, 16)),
      prefill: await best(() => prefill(engine)),
    }
  } finally {
    await engine.close()
  }
}

const report: Record<string, Record<string, Rate>> = {}
for (const [name, shape] of Object.entries(MODELS)) {
  for (const threads of [1, 2]) {
    const figures = await measure(shape, threads)
    report[`${name}, ${threads} thread${threads > 1 ? 's' : ''}`] = figures
    const line = Object.entries(figures).map(
      ([what, rate]) => `  ${what.padEnd(28)}${String(rate.wall).padStart(8)}${String(rate.cpu).padStart(10)}`,
    )
    process.stdout.write(`${`${name}, threads ${threads}`.padEnd(30)}  tok/s tok/CPU s\n${line.join('\n')}\n`)
  }
}
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
