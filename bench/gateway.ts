/**
 * @file What the gateway costs: CPU and latency beside a pass-through that only forwards bytes, the cost of a long
 * history, and memory. Everything runs in processes of its own, with the real tokenizer, store and engine adapter.
 *
 *     npm run bench:gateway -- [--json FILE] [--only cpu,latency,history,memory] [--peer PYTHON]
 *
 * `--peer` names a Python that has `litellm[proxy]` installed, which is then measured as well.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { cpus, tmpdir, totalmem } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Child } from './gateway/child.ts'
import { chatBody, median, pooled, quantile, streamedCall } from './gateway/client.ts'
import type { Target, TimedCall } from './gateway/client.ts'
import type { EngineSetup } from './gateway/engine-process.ts'
import type { Encoded, GatewayAnswer, GatewayQuestion, Opened } from './gateway/gateway-process.ts'
import { startPeer } from './gateway/peer.ts'
import type { Usage } from './gateway/child.ts'
import { textOf } from './gateway/texts.ts'

const { values: flags } = parseArgs({
  options: {
    json: { type: 'string' },
    only: { type: 'string', default: 'cpu,latency,history,memory' },
    peer: { type: 'string' },
    repeats: { type: 'string', default: '5' },
    executions: { type: 'string', default: '20' },
  },
})
const parts = new Set(flags.only.split(','))
const ANSWER_TOKENS = 256
/** Of a long execution: what its harness opens with, how many calls it makes, and its tokens at the end. */
const [OPENING_TOKENS, CALLS, EXECUTION_TOKENS] = [26_000, 400, 700_000]
const RESULT_TOKENS = Math.round((EXECUTION_TOKENS - OPENING_TOKENS) / CALLS) - ANSWER_TOKENS

const folder = mkdtempSync(join(tmpdir(), 'gyre-bench-gateway-'))
const engine = new Child<EngineSetup, { readonly port: number }>('engine-process.ts', [])
const blank: EngineSetup = { tokenIds: [], texts: [], stopId: 0, stepMs: 10 }
const { port: enginePort } = await engine.ask(blank)
const passing = new Child<{ readonly ask: 'port' | 'usage' }, Usage & { readonly port: number }>(
  'pass-through-process.ts',
  [String(enginePort)],
)
let gateways = 0

function startGateway(): Child<GatewayQuestion, GatewayAnswer> {
  const ledger = join(folder, `ledger-${gateways++}.db`)
  return new Child<GatewayQuestion, GatewayAnswer>('gateway-process.ts', [String(enginePort), ledger])
}

type Gateway = ReturnType<typeof startGateway>
const system = textOf(800, 1)
const used = async (gateway: Gateway, collectGarbage = false): Promise<Usage> => {
  const { usage } = await gateway.ask({ ask: 'usage', collectGarbage })
  if (usage === undefined) throw new Error('the gateway process did not say what it used')
  return usage
}
const opened = async (gateway: Gateway, count: number): Promise<readonly Opened[]> =>
  (await gateway.ask({ ask: 'open', count })).opened ?? []

let prompts = 0
/** 1,000 tokens that no call had before: all of them, or all but the system text that a harness repeats. */
function prompt(isSystemShared: boolean): string {
  const own = textOf(isSystemShared ? 200 : 1000, 1000 + prompts++)
  return chatBody([...(isSystemShared ? [{ role: 'system', content: system }] : []), { role: 'user', content: own }])
}

interface Side {
  readonly name: string
  readonly target: (i: number) => Target
  readonly cpuMs: () => Promise<number>
}

async function cpuPerCall(side: Side, isSystemShared: boolean, calls: number): Promise<number> {
  const before = await side.cpuMs()
  await pooled(calls, 32, async (i) => streamedCall(side.target(i), prompt(isSystemShared)))
  return ((await side.cpuMs()) - before) / calls
}

/** Median over repeats that take turns, after a warm-up. [ms a call] */
async function compareCpu(sides: readonly Side[], isSystemShared: boolean): Promise<Record<string, number>> {
  const samples = new Map(sides.map((side) => [side.name, [] as number[]]))
  for (let round = -1; round < Number(flags.repeats); round++) {
    for (const side of sides) {
      const spent = await cpuPerCall(side, isSystemShared, 96)
      if (round >= 0) samples.get(side.name)?.push(spent)
    }
  }
  return Object.fromEntries([...samples].map(([name, spent]) => [name, median(spent)]))
}

interface Latency {
  readonly first: readonly number[]
  readonly gaps: readonly number[]
}

async function latencyAt200(side: Side): Promise<Latency> {
  const calls = await pooled(400, 200, async (i): Promise<TimedCall> => streamedCall(side.target(i), prompt(true)))
  return { first: calls.map(({ firstMs }) => firstMs), gaps: calls.flatMap(({ gapsMs }) => gapsMs) }
}

const p99 = (values: readonly number[]): number => quantile(values, 0.99)

/** A long execution of a harness: calls of a growing history. */
async function longExecution(target: Target, seed: number, onCall: (call: number) => Promise<void>): Promise<void> {
  const messages: object[] = [
    { role: 'system', content: textOf(OPENING_TOKENS, 2) },
    { role: 'user', content: textOf(200, seed) },
  ]
  for (let call = 1; call <= CALLS; call++) {
    await onCall(call)
    await streamedCall(target, chatBody(messages))
    messages.push({ role: 'assistant', content: answerText })
    messages.push({ role: 'user', content: textOf(RESULT_TOKENS, seed * 1000 + call) })
  }
  await onCall(CALLS + 1)
}

/** CPU of nine calls around the 10th and the last ones. [ms a call] */
async function historyCost(gateway: Gateway): Promise<{ call10Ms: number; call400Ms: number }> {
  const cpu = new Map<number, number>()
  const [target] = await opened(gateway, 1)
  if (target === undefined) throw new Error('no execution was opened')
  await longExecution(target, 7, async (call) => {
    if (call === 6 || call === 15 || call === CALLS - 8 || call === CALLS + 1)
      cpu.set(call, (await used(gateway)).cpuMs)
  })
  const spent = (from: number, to: number): number => ((cpu.get(to) ?? 0) - (cpu.get(from) ?? 0)) / (to - from)
  return { call10Ms: spent(6, 15), call400Ms: spent(CALLS - 8, CALLS + 1) }
}

async function memory(gateway: Gateway, executions: number): Promise<Record<string, number>> {
  // What it keeps whatever it serves (code, caches of words and blocks, room for bodies) is there before.
  const warm = await opened(gateway, 4)
  await pooled(warm.length, 4, async (i) => longExecution(warm[i] as Target, 50 + i, async () => undefined))
  await gateway.ask({ ask: 'close', ids: warm.map(({ id }) => id) })
  const before = await used(gateway, true)
  const targets = await opened(gateway, executions)
  await pooled(executions, 4, async (i) => longExecution(targets[i] as Target, 100 + i, async () => undefined))
  const after = await used(gateway, true)
  const tokens = executions * EXECUTION_TOKENS
  return {
    bytesPerToken: (after.residentBytes - before.residentBytes) / tokens,
    heldBytesPerToken: (after.heldBytes - before.heldBytes) / tokens,
    distinctTokens: tokens,
    residentBeforeBytes: before.residentBytes,
    residentAfterBytes: after.residentBytes,
  }
}

const setup = (stepMs: number): EngineSetup => ({ ...answer, stepMs })

async function main(): Promise<Record<string, unknown>> {
  const figures: Record<string, unknown> = {}
  using first = startGateway()
  const executions = await opened(first, 200)
  const sides: Side[] = [
    {
      name: 'gateway',
      target: (i) => executions[i % executions.length] as Target,
      cpuMs: async () => (await used(first)).cpuMs,
    },
    {
      name: 'passThrough',
      target: () => ({ baseUrl: `http://127.0.0.1:${passThroughPort}`, apiKey: 'none' }),
      cpuMs: async () => (await passing.ask({ ask: 'usage' })).cpuMs,
    },
  ]
  using peer = flags.peer === undefined ? undefined : await startPeer(flags.peer, enginePort, folder)
  if (peer !== undefined) sides.push(peer)
  if (parts.has('cpu')) {
    await engine.ask(setup(10))
    const shared = await compareCpu(sides, true)
    const distinct = await compareCpu(sides.slice(0, 2), false)
    Object.assign(figures, {
      cpuMsPerCall: shared,
      cpuMsPerCallWithoutSharedSystemText: distinct,
      cpuOverPassThrough: ratio(shared),
      cpuOverPassThroughWithoutSharedSystemText: ratio(distinct),
    })
    tell(figures)
  }
  if (parts.has('latency')) {
    await engine.ask(setup(40))
    await used(first)
    const latencies = new Map<string, Latency>()
    for (const side of sides) latencies.set(side.name, await latencyAt200(side))
    const [ours, bare] = [latencies.get('gateway'), latencies.get('passThrough')]
    if (ours === undefined || bare === undefined) throw new Error('a side was not measured')
    const addedFirst = p99(ours.first) - p99(bare.first)
    const addedGap = p99(ours.gaps) - p99(bare.gaps)
    Object.assign(figures, {
      p99AddedMs: Math.max(addedFirst, addedGap),
      p99AddedFirstTokenMs: addedFirst,
      p99AddedBetweenTokensMs: addedGap,
      latencyMs: Object.fromEntries(
        [...latencies].map(([name, { first: times, gaps }]) => [
          name,
          { firstP50: median(times), firstP99: p99(times), gapP50: median(gaps), gapP99: p99(gaps) },
        ]),
      ),
      longestStallMs: (await used(first)).longestStallMs,
    })
    const big = chatBody([
      { role: 'system', content: textOf(OPENING_TOKENS, 5) },
      { role: 'user', content: 'go' },
    ])
    await Promise.all([latencyAt200(sides[0] as Side), streamedCall((await opened(first, 1))[0] as Target, big)])
    figures['longestStallWithFirst26kPromptMs'] = (await used(first)).longestStallMs
    tell(figures)
  }
  await engine.ask(setup(0))
  if (parts.has('history')) {
    const cost = await historyCost(first)
    Object.assign(figures, cost, { call400OverCall10: cost.call400Ms / cost.call10Ms })
    tell(figures)
  }
  if (parts.has('memory')) {
    using second = startGateway()
    Object.assign(figures, await memory(second, Number(flags.executions)))
  }
  return figures
}

/** So that a run that is broken off leaves what it has. */
function tell(figures: object): void {
  process.stderr.write(`${JSON.stringify(figures)}\n`)
}

function ratio(cpu: Readonly<Record<string, number>>): number {
  return (cpu['gateway'] ?? Number.NaN) / (cpu['passThrough'] ?? Number.NaN)
}

let answer: EngineSetup = blank
let answerText = ''
let passThroughPort = 0
try {
  passThroughPort = (await passing.ask({ ask: 'port' })).port
  using encoder = startGateway()
  const { encoded } = await encoder.ask({ ask: 'encode', text: textOf(ANSWER_TOKENS, 3) })
  const { tokenIds, texts, stopId } = encoded as Encoded
  answer = {
    tokenIds: tokenIds.slice(0, ANSWER_TOKENS - 1),
    texts: texts.slice(0, ANSWER_TOKENS - 1),
    stopId,
    stepMs: 10,
  }
  answerText = answer.texts.join('')
  const figures = await main()
  const [cpu] = cpus()
  const result = {
    ...figures,
    command: `npm run bench:gateway -- ${process.argv.slice(2).join(' ')}`.trim(),
    machine: `${cpu?.model.trim() ?? 'unknown'}, ${cpus().length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB`,
    versions: { node: process.versions.node, uv: process.versions.uv, v8: process.versions.v8 },
  }
  process.stdout.write(`${JSON.stringify(result, null, 2)}\n`)
  if (flags.json !== undefined) writeFileSync(flags.json, `${JSON.stringify(result, null, 2)}\n`)
} finally {
  for (const child of [engine, passing]) child[Symbol.dispose]()
  rmSync(folder, { recursive: true, force: true })
}
