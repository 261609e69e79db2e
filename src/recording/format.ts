/**
 * @file What a recording holds. docs/recordings.md describes the files.
 *
 * `recording.json` says what was recorded, `calls.jsonl` what the policy sampled, `exchanges.jsonl` what the harness
 * asked and when, `parts.jsonl` the distinct pieces of the requests, one a line, counted from 0.
 */
import { z } from 'zod'

export const RECORDING_FORMAT = 1
export const RECORDING_FILES = {
  head: 'recording.json',
  calls: 'calls.jsonl',
  exchanges: 'exchanges.jsonl',
  parts: 'parts.jsonl',
} as const

const toolCallSchema = z.strictObject({ name: z.string(), arguments: z.string() })

const sampledSchema = z.union([
  /** A turn exactly as the chat template writes it. */
  z.strictObject({
    thinking: z.string().optional(),
    text: z.string().optional(),
    calls: z.array(toolCallSchema).optional(),
  }),
  /** Anything else, markers included, without the end-of-turn token. */
  z.strictObject({ raw: z.string() }),
  /** Ids of the recording's own tokenizer, where no text says them. */
  z.strictObject({ ids: z.array(z.int()) }),
])

const callSchema = z.strictObject({
  /** Counts the calls by arrival. */
  call: z.int().min(0),
  /** Counts the calls by commit. */
  sequence: z.int().min(0),
  role: z.enum(['main', 'main-summary', 'sub-agent', 'sub-agent-summary', 'side']),
  thread: z.string().optional(),
  status: z.enum(['committed', 'aborted', 'orphan']),
  /** `stop` when the end-of-turn token was sampled. */
  end: z.enum(['stop', 'length', 'open']),
  sampled: sampledSchema,
})

const exchangeSchema = z.strictObject({
  arrival: z.int().min(0),
  /** The call that answered it, and when its request met the tree; missing when it was refused. */
  match: z.strictObject({ call: z.int().min(0), order: z.int().min(0), committedBefore: z.int().min(0) }).optional(),
  /** Since the first request of the session. [ms] */
  atMs: z.number(),
  endMs: z.number(),
  path: z.string(),
  headers: z.record(z.string(), z.string()),
  /** HTTP status; 0 when the client left before there was one. */
  status: z.int(),
  /** False when the client left before the end. */
  complete: z.boolean(),
  /** The body, lists as references into the parts; null when it was no JSON. */
  body: z.json(),
})

const headSchema = z.strictObject({
  format: z.literal(RECORDING_FORMAT),
  harness: z.string(),
  version: z.string(),
  scenario: z.string(),
  description: z.string().optional(),
  profile: z.string(),
  /** `bytes`, or the name of the folder of another one. */
  tokenizer: z.string(),
  /** Strings of the harness longer than this were replaced. [characters] */
  replacedOver: z.int(),
  /** [tokens] of the recording's tokenizer. */
  contextWindow: z.int(),
  maxOutputTokens: z.int(),
  /** Version of gyre that wrote it. */
  gyre: z.string(),
})

export type RecordingHead = z.output<typeof headSchema>
export type RecordedCall = z.output<typeof callSchema>
export type RecordedSample = z.output<typeof sampledSchema>
export type RecordedExchange = z.output<typeof exchangeSchema>

export const recordingSchemas = { head: headSchema, call: callSchema, exchange: exchangeSchema }

/** A recording as it is on disk: bodies hold references and placeholders. */
export interface RecordingFiles {
  readonly head: RecordingHead
  readonly calls: readonly RecordedCall[]
  readonly exchanges: readonly RecordedExchange[]
  readonly parts: readonly unknown[]
}
