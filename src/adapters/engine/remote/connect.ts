/** @file From a checked wire to an engine: the part that connecting has in common. */
import { notUsable } from './failures.ts'
import type { HttpClient } from './http.ts'
import { probeIdsOf } from './options.ts'
import type { RemoteOptions } from './options.ts'
import { probe } from './probe.ts'
import type { ProbeHints, Probed } from './probe.ts'
import { createRemoteEngine } from './remote-engine.ts'
import type { RemoteEngine } from './remote-engine.ts'
import { Versions } from './versions.ts'
import { isRecord } from './wire.ts'
import type { Wire } from './wire.ts'

/** The least context that leaves room for the start-up checks. [tokens] */
const MIN_CONTEXT = 64

/** @throws GyreError E_ENGINE_PROBE */
export async function probed(
  wire: Wire,
  options: RemoteOptions,
  hints: ProbeHints,
  asksForSeeding = true,
): Promise<Probed> {
  return probe(wire, {
    promptIds: probeIdsOf(options),
    vocabSize: options.vocabSize,
    acceptProcessedLogprobs: options.acceptProcessedLogprobs ?? false,
    asksForSeeding,
    hints,
  })
}

/** A connected server, and what a standalone engine needs of it beside the engine. */
export interface OpenedServer {
  readonly engine: RemoteEngine
  readonly versions: Versions
  readonly http: HttpClient
  /** Undefined where the server does not list them. */
  readonly routes: ReadonlySet<string> | undefined
}

export function engineOf(wire: Wire, options: RemoteOptions, maxContext: number, found: Probed): RemoteEngine {
  return engineWith(versionsOf(options, found), wire, options, maxContext, found)
}

export function versionsOf(options: RemoteOptions, found: Probed): Versions {
  const source = { policyVersion: options.policyVersion ?? 0, versionOf: options.versionOf }
  return new Versions(source, found.weightLabel)
}

export function engineWith(
  versions: Versions,
  wire: Wire,
  options: RemoteOptions,
  maxContext: number,
  found: Probed,
): RemoteEngine {
  return createRemoteEngine({
    id: options.id,
    wire,
    versions,
    vocabSize: options.vocabSize,
    capabilities: { ...found, route: wire.route, stream: wire.shape, maxContext },
  })
}

/** Runs the connecting of an engine; whatever it opened is closed when it fails. */
export async function orClose<T>(http: { close(): Promise<void> }, connect: () => Promise<T>): Promise<T> {
  try {
    return await connect()
  } catch (error) {
    await http.close()
    throw error
  }
}

/** The paths of a server that lists them; undefined when it does not. @throws GyreError when it cannot be reached. */
export async function routesOf(http: HttpClient): Promise<ReadonlySet<string> | undefined> {
  const { status, body } = await http.json('GET', '/openapi.json')
  if (status !== 200 || !isRecord(body) || !isRecord(body['paths'])) return undefined
  return new Set(Object.keys(body['paths']))
}

/** The first model of `/v1/models` and the context it takes. */
export async function servedModel(
  http: HttpClient,
): Promise<{ readonly name: string; readonly maxContext: number | undefined } | undefined> {
  const { status, body } = await http.json('GET', '/v1/models')
  const data = status === 200 && isRecord(body) && Array.isArray(body['data']) ? (body['data'] as unknown[]) : []
  const model = data.find(isRecord)
  if (model === undefined) return undefined
  const length = model['max_model_len']
  return { name: String(model['id']), maxContext: typeof length === 'number' ? length : undefined }
}

/** The context to keep to: the smaller of what the server says and what we were told. @throws GyreError E_ENGINE_PROBE */
export function contextOf(where: string, said: number | undefined, told: number | undefined): number {
  const context = Math.min(said ?? Number.POSITIVE_INFINITY, told ?? Number.POSITIVE_INFINITY)
  if (!Number.isFinite(context)) throw notUsable(where, 'it does not say how long a context may be', 'Give maxContext')
  if (context < MIN_CONTEXT) {
    throw notUsable(where, `its context is ${context} tokens`, `Give it one of ${MIN_CONTEXT} or more`)
  }
  return context
}
