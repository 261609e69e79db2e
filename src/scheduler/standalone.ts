/**
 * @file Rollout engines beside the cells: they never train and never leave, but they fail, come back and take every
 * published version. An engine whose version is not the published one serves nothing, but for the publication itself.
 */
import { rehome } from './routes.ts'
import type { Draft, Tick } from './tick.ts'
import type { StandaloneSlot } from './types.ts'

type DraftEngine = Draft<StandaloneSlot>

/** E12 for engines that serve. One that failed gets the version when it answers again. */
export function publishStandalone(tick: Tick): boolean {
  const { state } = tick
  let issued = false
  for (const [engine, slot] of state.standalone.entries()) {
    if (slot.phase !== 'serving' || slot.publishing || slot.policyVersion === state.policyVersion) continue
    slot.publishing = true
    tick.commands.push({ kind: 'publish-standalone', engine, epoch: slot.epoch, version: state.policyVersion })
    issued = true
  }
  return issued
}

export function standalonePublished(tick: Tick, slot: DraftEngine, version: number): void {
  // A second answer to an earlier publication says nothing about this one.
  if (!slot.publishing || !tick.guards.isOfVersion(tick.state.policyVersion, version)) return
  slot.publishing = false
  slot.policyVersion = version
}

/** Its executions go on elsewhere, from their partial tokens; how often it may fail has no limit. */
export function standaloneFailed(tick: Tick, engine: number, slot: DraftEngine): void {
  if (slot.phase === 'failed') return
  slot.phase = 'failed'
  slot.publishing = false
  rehome(tick, { kind: 'standalone', index: engine })
  recover(tick, engine, slot)
}

function recover(tick: Tick, engine: number, slot: DraftEngine): void {
  slot.epoch++
  tick.commands.push({ kind: 'recover-standalone', engine, epoch: slot.epoch, version: tick.state.policyVersion })
}

/** One that came back with weights published before asks again: it would serve what the burst is not about. */
export function standaloneRecovered(tick: Tick, engine: number, slot: DraftEngine, version: number): void {
  if (slot.phase !== 'failed') return
  if (!tick.guards.isOfVersion(tick.state.policyVersion, version)) {
    recover(tick, engine, slot)
    return
  }
  slot.phase = 'serving'
  slot.policyVersion = version
}

/** The engine an event speaks about, unless the event is of an older epoch. */
export function currentEngine(
  { state, guards }: Tick,
  event: { readonly engine: number; readonly epoch: number },
): DraftEngine | undefined {
  const slot = state.standalone[event.engine]
  return slot !== undefined && guards.isOfEngine(slot, event.epoch) ? slot : undefined
}
