/** @file Turns a session that just happened into the files of a recording. */
import type { Json } from '../core/items.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { CallRecord, PolicyNode } from '../trajectory/node.ts'
import type { CallSignal, HarnessProfile } from '../trajectory/profile.ts'
import { RECORDING_FORMAT } from './format.ts'
import type { RecordedCall, RecordedExchange, RecordingFiles, RecordingHead } from './format.ts'
import { PartTable } from './parts.ts'
import { replaceLongTexts } from './replace.ts'
import type { ReplaceOptions } from './replace.ts'
import { sampledText } from './sampled.ts'
import { scrubber } from './scrub.ts'

/** One exchange as the gateway saw it. */
export interface SeenExchange {
  readonly arrival: number
  readonly path: string
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  /** undefined when it was no JSON. */
  readonly body: unknown
  /** Number of the call that answered it, by arrival; undefined when it was refused. */
  readonly call: number | undefined
  readonly order: number | undefined
  readonly committedBefore: number | undefined
  readonly status: number
  readonly isComplete: boolean
  readonly startedAtMs: number
  readonly endedAtMs: number
}

export interface SeenSession {
  readonly head: Omit<RecordingHead, 'format' | 'replacedOver'>
  /** Its signals stay readable. */
  readonly profile: HarnessProfile
  readonly codec: ChatCodec
  readonly exchanges: readonly SeenExchange[]
  readonly records: readonly CallRecord[]
  /** Folders of this machine that the harness may have seen. */
  readonly folders: readonly string[]
  /** Longer strings of the harness are replaced. [characters] Default 160. */
  readonly replaceOver?: number
}

/** Only these headers are kept, and those the profile names. Never one with a key. */
const KEPT_HEADERS: readonly string[] = ['anthropic-version', 'x-stainless-retry-count']
const SECRET_NAME = /auth|cookie|key|token|secret/i
const DEFAULT_OVER = 160

export function recordSession(session: SeenSession): RecordingFiles {
  const over = session.replaceOver ?? DEFAULT_OVER
  const turns = session.records.flatMap(({ nodes }) => nodes.filter((node) => node.provenance === 'policy'))
  const options: ReplaceOptions = {
    over,
    signals: signalTexts(session.profile),
    lines: session.profile.volatileSystemLines,
    isSampled: sampledBy(turns),
    scrub: scrubber(session.folders),
  }
  const table = new PartTable()
  const startMs = session.exchanges[0]?.startedAtMs ?? 0
  const kept = headersToKeep(session.profile)
  const exchanges = session.exchanges.map((seen): RecordedExchange => ({
    arrival: seen.arrival,
    ...matchOf(seen),
    atMs: Math.round(seen.startedAtMs - startMs),
    endMs: Math.round(seen.endedAtMs - startMs),
    path: withoutKeys(seen.path),
    headers: keptHeaders(seen.headers, kept, options),
    status: seen.status,
    complete: seen.isComplete,
    body: (table.pack(replaceLongTexts(seen.body ?? null, options)) ?? null) as Json as RecordedExchange['body'],
  }))
  return {
    head: { format: RECORDING_FORMAT, replacedOver: over, ...session.head },
    calls: session.records.map((record) => recordedCall(record, session.codec, options.scrub)),
    exchanges,
    parts: table.parts,
  }
}

function signalsIn({ side, summary, subAgent }: HarnessProfile): readonly CallSignal[] {
  return [...side, ...summary, ...subAgent]
}

/** Every text a rule of the profile looks for. */
function signalTexts(profile: HarnessProfile): readonly string[] {
  return signalsIn(profile).flatMap((signal) => [
    ...(signal.systemIncludes ?? []),
    ...(signal.firstUserIncludes ?? []),
    ...(signal.firstUserLacks ?? []),
    ...(signal.lastUserIncludes ?? []),
  ])
}

function headersToKeep(profile: HarnessProfile): ReadonlySet<string> {
  const looked = signalsIn(profile).flatMap(({ header }) => header ?? [])
  return new Set([...KEPT_HEADERS, ...profile.threadHeaders, ...looked, ...profile.headersToRecord])
}

function matchOf({ call, order, committedBefore }: SeenExchange): Pick<RecordedExchange, 'match'> {
  if (call === undefined || order === undefined || committedBefore === undefined) return {}
  return { match: { call, order, committedBefore } }
}

function recordedCall(record: CallRecord, codec: ChatCodec, scrub: (text: string) => string): RecordedCall {
  const node = record.nodes.at(-1) as PolicyNode
  const { sampled, end } = sampledText(node, codec)
  return {
    call: callNumber(record.callId),
    sequence: record.sequence,
    role: record.role,
    ...(record.thread === '' ? {} : { thread: record.thread }),
    status: node.status,
    end,
    sampled: replaceStrings(sampled, scrub),
  }
}

/** Ids of calls end in their number by arrival. */
export function callNumber(callId: string): number {
  return Number(callId.slice(callId.lastIndexOf('.') + 1))
}

function replaceStrings<T>(value: T, scrub: (text: string) => string): T {
  return JSON.parse(JSON.stringify(value), (_key, inner: unknown) =>
    typeof inner === 'string' ? scrub(inner) : inner,
  ) as T
}

/** A long text is the policy's own when it stands in something it said. */
function sampledBy(turns: readonly PolicyNode[]): (text: string) => boolean {
  const said = turns.map(({ turn }) => [turn.thinking, turn.text, ...turn.toolCalls.map((call) => call.argumentsText)])
  const all = said.flat().join('\n')
  return (text) => all.includes(text.trim())
}

/** Some clients put their key into the query. */
function withoutKeys(path: string): string {
  const [name = '', query] = path.split('?', 2)
  const kept = (query ?? '').split('&').filter((pair) => pair !== '' && !SECRET_NAME.test(pair.split('=', 1)[0] ?? ''))
  return kept.length === 0 ? name : `${name}?${kept.join('&')}`
}

function keptHeaders(
  headers: SeenExchange['headers'],
  kept: ReadonlySet<string>,
  options: ReplaceOptions,
): Readonly<Record<string, string>> {
  const entries = Object.entries(headers).flatMap(([name, value]): [string, string][] => {
    if (value === undefined || !kept.has(name) || SECRET_NAME.test(name)) return []
    return [[name, shortened(options.scrub(typeof value === 'string' ? value : value.join(', ')), options.over)]]
  })
  return Object.fromEntries(entries)
}

/** Of a long JSON header only the short facts stay. */
function shortened(value: string, over: number): string {
  if (value.length <= over) return value
  try {
    const facts = JSON.parse(value) as unknown
    if (typeof facts !== 'object' || facts === null) return value.slice(0, over)
    const short = Object.entries(facts).filter(([, fact]) => JSON.stringify(fact).length <= 64)
    return JSON.stringify(Object.fromEntries(short))
  } catch {
    return value.slice(0, over)
  }
}
