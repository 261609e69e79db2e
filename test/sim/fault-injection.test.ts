/**
 * @file The live controller among seeded faults: thousands of histories, each the same on every machine.
 *
 * GYRE_SIM_RUNS=20000 looks further; GYRE_SIM_FIRST moves where it looks; GYRE_SIM_SEED=n plays one history and prints
 * everything that happened in it.
 */
import { describe, expect, test } from 'vitest'
import { planOf } from './plan.ts'
import { playHistory } from './world.ts'
import type { History } from './world.ts'

const RUNS = Number(process.env['GYRE_SIM_RUNS'] ?? 2000)
const FIRST = Number(process.env['GYRE_SIM_FIRST'] ?? 1)
const SEED = process.env['GYRE_SIM_SEED']
/** Histories that say what went wrong; more would say the same. */
const SHOWN = 5

/** Every kind of fault, and every thing it should lead to, that must have happened in so many histories. */
const KINDS = [
  // The network.
  'request-lost-reset',
  'request-lost-silent',
  'answer-lost-reset',
  'answer-lost-silent',
  'repeated',
  'late',
  'stream-broken',
  'partition',
  // Cells.
  'kill',
  'core-kill',
  'hang',
  'pause',
  'slow',
  'crash-before',
  'crash-after',
  'restart-failed',
  'restart-hung',
  'disk-full',
  'steps-undone',
  'cell-failed',
  'crash before enter-training',
  'crash after enter-training',
  'crash before pull-weights',
  'crash after pull-weights',
  'crash before zero-gradients',
  'crash after zero-gradients',
  'crash before forward-backward',
  'crash after forward-backward',
  'crash before reduce-gradients',
  'crash after reduce-gradients',
  'crash before optimizer-step',
  'crash after optimizer-step',
  'crash before save-checkpoint',
  'crash after save-checkpoint',
  'crash before load-checkpoint',
  'crash after load-checkpoint',
  'crash before generate',
  'crash after generate',
  'crash before pin-kv',
  'crash before fetch-kv',
  // The control process.
  'control-kill',
  'cells-survive',
  'control-stall',
  // Executions.
  'sandbox-failed',
  'launch-failed',
  'harness-crashed',
  'harness-hung',
  'signal-ignored',
  'score-failed',
  'score-hung',
  'outcome finished',
  'outcome cut',
  'outcome harness-timeout',
  'outcome harness-failed',
  'outcome overall-timeout',
  'outcome evaluation-failed',
  'outcome infrastructure-failed',
  // Engines beside the cells.
  'standalone-down',
  'standalone-slow',
  // What all this is about.
  'role-transfer',
  'call-moved',
  'kv-fetched',
  'kv-used',
] as const

function replayOf(seed: number): string {
  return `GYRE_SIM_SEED=${seed} npx vitest run --project unit test/sim/fault-injection.test.ts`
}

function reportOf({ plan, problems }: History): string {
  const { policy, cells } = plan.config
  return [`seed ${plan.seed}, ${policy} on ${cells} cells: ${replayOf(plan.seed)}`, ...problems].join('\n    ')
}

async function fingerprintOf(seed: number): Promise<readonly number[]> {
  const { fingerprint, events, durationMs } = await playHistory(planOf(seed))
  return [seed, fingerprint, events, durationMs]
}

describe.skipIf(SEED === undefined)('one history', () => {
  test(`of seed ${SEED}`, async () => {
    const history = await playHistory(planOf(Number(SEED)), { keepLog: true })
    process.stdout.write(`${JSON.stringify(history.plan, undefined, 2)}\n${history.log.join('\n')}\n`)
    expect(history.problems).toEqual([])
  })
})

describe.skipIf(SEED !== undefined)('histories of a run among faults', () => {
  const coverage = new Map<string, number>()

  test(`of ${RUNS} seeds lose nothing, train nothing twice and end`, async () => {
    const bad: string[] = []
    for (let seed = FIRST; seed < FIRST + RUNS && bad.length < SHOWN; seed++) {
      const history = await playHistory(planOf(seed))
      for (const [kind, count] of history.coverage) coverage.set(kind, (coverage.get(kind) ?? 0) + count)
      if (history.problems.length > 0) bad.push(reportOf(history))
    }
    expect(bad.join('\n')).toBe('')
  }, 3_600_000)

  test.skipIf(RUNS < 2000)('met every kind of fault', () => {
    expect(KINDS.filter((kind) => (coverage.get(kind) ?? 0) === 0)).toEqual([])
  })

  test('are the same when they are played again', async () => {
    const seeds = Array.from({ length: 25 }, (_, i) => 1000 + i)
    const first = []
    for (const seed of seeds) first.push(await fingerprintOf(seed))
    const again = []
    for (const seed of seeds.toReversed()) again.unshift(await fingerprintOf(seed))
    expect(again).toEqual(first)
    expect(new Set(first.map(([, fingerprint]) => fingerprint)).size).toBe(seeds.length)
  })
})
