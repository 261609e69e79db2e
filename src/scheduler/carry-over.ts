/**
 * @file phi, chosen at each boundary: the slip-budget controller (scheduler.md 5). Pure.
 *
 * Predicted time of a burst, with F the distribution of a group's time from dispatch to ready:
 *
 *     T(phi) = max( wait(phi) + tail, R_half + work - min(R_half, phi tau) )
 *     wait(phi) = max( F^-1(mu B / ((mu + phi) B + 1)),                 the last group a burst has to wait for
 *                      F^-1(mu B / (mu B + 1)) / (1 + ceil(phi / mu)) ) the slowest, by when it is too old to wait on
 *
 * k of n groups are there at F^-1(k / (n + 1)) in the mean. `tail` is what a burst takes after its last group: training
 * that nothing hides, and publication. The other term never waits for a group: training, mu tau, and publication make
 * `work`; the rollout before it takes R_half = F^-1(1/2), of which training what was carried over hides phi tau.
 * `work` and `tail` are measured.
 *
 * Every group carried over is trained mu steps later, so mean staleness is exactly (mu - 1) / 2 + phi, and phi may rise
 * as long as 0.1 of it buys 1 %: the phi that minimises T(phi) 1.01^(10 phi).
 */
import type { Draft, DraftGroup, DraftState } from './tick.ts'
import type { ScheduleHistory, SchedulerConfig, SchedulerState } from './types.ts'

/** Choices of phi are so far apart. [steps] */
const CHOICE = 0.25
/** What one step of mean staleness has to buy: 1 % per 0.1. */
const PRICE_OF_STALENESS = Math.log(1.01) / 0.1
/** Groups whose times say something about a distribution. */
const LEAST_GROUPS = 8
/** Groups and bursts remembered. */
const GROUPS_KEPT = 256
const BURSTS_KEPT = 4

/** phi for the burst that is about to open: `carryOver` until there is enough history. */
export function chooseCarryOver(state: SchedulerState): number {
  const { config, history } = state
  if (config.carryOverMin === config.carryOverMax) return config.carryOver
  const times = completeTimes(state)
  if (times.length < Math.max(LEAST_GROUPS, config.stepsPerBurst * config.groupsPerStep)) return config.carryOver
  if (history.bursts.length === 0) return config.carryOver
  let best = config.carryOverMin
  let least = Number.POSITIVE_INFINITY
  for (const phi of choices(config)) {
    const cost = Math.log(Math.max(1, burstTime(times, history.bursts, config, phi))) + PRICE_OF_STALENESS * phi
    // Equal costs keep the smaller phi.
    if (cost < least - 1e-9) {
      best = phi
      least = cost
    }
  }
  return best
}

/** From the least to the largest phi whose leftovers let the core train. Never empty. */
export function choices(config: SchedulerConfig): number[] {
  const all: number[] = []
  for (let i = 0; config.carryOverMin + i * CHOICE < config.carryOverMax; i++) {
    all.push(config.carryOverMin + i * CHOICE)
  }
  all.push(config.carryOverMax)
  return all.filter((phi, i) => i === 0 || leavesTraining(config, phi))
}

/** phi B N executions fit what is left when the core trains. Under `async` its cells train whatever is carried over. */
export function leavesTraining(config: SchedulerConfig, phi: number): boolean {
  if (config.policy === 'async') return true
  const standalone = config.standaloneSlots.reduce((sum, slots) => sum + slots, 0)
  const remaining = (config.cells - 1) * config.cellSlots + standalone
  return Math.round(phi * config.groupsPerStep) * config.groupSize <= remaining
}

/** (mu - 1) / 2 + phi [steps]: what it comes to when every burst is full and leaves phi B groups over. */
export function expectedStaleness(stepsPerBurst: number, phi: number): number {
  return (stepsPerBurst - 1) / 2 + phi
}

/** @param times ascending. [ms] Neither they nor the bursts are empty. */
export function burstTime(
  times: readonly number[],
  bursts: ScheduleHistory['bursts'],
  { stepsPerBurst, groupsPerStep }: Pick<SchedulerConfig, 'stepsPerBurst' | 'groupsPerStep'>,
  phi: number,
): number {
  const consumed = stepsPerBurst * groupsPerStep
  const waited = quantile(times, consumed / (consumed + phi * groupsPerStep + 1))
  const slowest = quantile(times, consumed / (consumed + 1)) / (1 + Math.ceil(phi / stepsPerBurst))
  const tail = mean(bursts.map((b) => b.tailMs))
  const work = mean(bursts.map((b) => b.workMs))
  const half = quantile(times, 0.5)
  const hidden = Math.min(half, (phi * work) / stepsPerBurst)
  return Math.max(Math.max(waited, slowest) + tail, half + work - hidden)
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

/** @param ascending not empty. @param share 0 to 1; linear between neighbours. */
export function quantile(ascending: readonly number[], share: number): number {
  const at = share * (ascending.length - 1)
  const below = ascending[Math.floor(at)] ?? 0
  const above = ascending[Math.ceil(at)] ?? below
  return below + (above - below) * (at - Math.floor(at))
}

/**
 * Of dispatches that are over only: while one of its groups is out, the times of the others say nothing about the
 * slowest. Ascending.
 */
function completeTimes({ groups, history }: SchedulerState): number[] {
  const open = Math.min(...groups.filter((g) => g.phase === 'running').map((g) => g.dispatchVersion))
  return history.completions
    .filter((c) => c.dispatchVersion < open)
    .map((c) => c.elapsedMs)
    .toSorted((a, b) => a - b)
}

/** A group became ready. */
export function rememberCompletion(state: DraftState, group: DraftGroup): void {
  if (group.dispatchedAtMs === undefined || !isChosen(state.config)) return
  const elapsedMs = state.nowMs - group.dispatchedAtMs
  const kept = [...state.history.completions, { dispatchVersion: group.dispatchVersion, elapsedMs }]
  state.history.completions = withoutOldest(kept, state.config)
}

/** Drops whole dispatches, but none that may still have groups out or is the only one that has not. */
function withoutOldest(
  completions: Draft<ScheduleHistory['completions']>,
  config: SchedulerConfig,
): Draft<ScheduleHistory['completions']> {
  if (completions.length <= GROUPS_KEPT) return completions
  const versions = [...new Set(completions.map((c) => c.dispatchVersion))].toSorted((a, b) => a - b)
  if (versions.length <= 2 + Math.ceil(config.carryOverMax / config.stepsPerBurst)) return completions
  return completions.filter((c) => c.dispatchVersion !== versions[0])
}

function isChosen(config: SchedulerConfig): boolean {
  return config.carryOverMin !== config.carryOverMax
}

/** Adds the time since the last event to the burst, under the state that held meanwhile. */
export function accountTime(state: DraftState, sinceMs: number): void {
  const { burst, openStep, config } = state
  if (state.phase !== 'running') return
  if (burst.stepsLeft === 1 && openStep?.groups.length === config.groupsPerStep) burst.filledAtMs ??= sinceMs
  if (!hasTrainingWork(state)) burst.idleMs += state.nowMs - sinceMs
}

function hasTrainingWork({ openStep, cells }: SchedulerState): boolean {
  if (openStep === undefined) return false
  return openStep.phase !== 'open' || cells.some((cell) => cell.claim !== undefined)
}

/** The next boundary is here. A burst that ended early says nothing about a full one. */
export function rememberBurst(state: DraftState): void {
  const { burst, config, history } = state
  const steps = state.step - burst.firstStep
  if (!isChosen(config) || steps !== config.stepsPerBurst || burst.filledAtMs === undefined) return
  const workMs = state.nowMs - burst.startedAtMs - burst.idleMs
  history.bursts = [...history.bursts, { workMs, tailMs: state.nowMs - burst.filledAtMs }].slice(-BURSTS_KEPT)
}
