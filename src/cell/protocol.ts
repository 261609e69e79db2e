/**
 * @file The names both ends of the cell protocol share: paths, headers, deadlines, JSON bodies.
 * docs/cell-protocol.md is its specification.
 */
import { z } from 'zod'
import { CELL_PROTOCOL_VERSION } from '../ports/cell.ts'
import type { CellHealth, CellHello, FetchedKv } from '../ports/cell.ts'

/** Every verb, its HTTP method, and whether it is fenced by the caller's epoch. */
export const VERBS = {
  health: { method: 'GET', fenced: false },
  hello: { method: 'GET', fenced: false },
  weights: { method: 'GET', fenced: false },
  gradients: { method: 'GET', fenced: false },
  generate: { method: 'POST', fenced: true },
  'enter-training': { method: 'POST', fenced: true },
  'enter-rollout': { method: 'POST', fenced: true },
  'pull-weights': { method: 'POST', fenced: true },
  'set-policy-version': { method: 'POST', fenced: true },
  'zero-gradients': { method: 'POST', fenced: true },
  'forward-backward': { method: 'POST', fenced: true },
  'hold-gradient': { method: 'POST', fenced: true },
  'apply-held': { method: 'POST', fenced: true },
  'drop-held': { method: 'POST', fenced: true },
  'reduce-gradients': { method: 'POST', fenced: true },
  'optimizer-step': { method: 'POST', fenced: true },
  'save-checkpoint': { method: 'POST', fenced: true },
  'load-checkpoint': { method: 'POST', fenced: true },
  'pin-kv': { method: 'POST', fenced: true },
  'fetch-kv': { method: 'POST', fenced: true },
  'release-kv': { method: 'POST', fenced: true },
  'pinned-kv': { method: 'POST', fenced: false },
  'kv-blocks': { method: 'POST', fenced: false },
} as const satisfies Record<string, { method: 'GET' | 'POST'; fenced: boolean }>
export type Verb = keyof typeof VERBS

/** `/v1/` and the verb. */
export const pathOf = (verb: Verb): string => `/v${CELL_PROTOCOL_VERSION}/${verb}`

export const HEADER = {
  /** Fencing token of the caller, a non-negative integer. */
  epoch: 'x-gyre-epoch',
  /** How long the caller waits, counted from the arrival of the request. [ms] */
  deadline: 'x-gyre-deadline-ms',
  /** Names one piece of work, so that a second delivery of it counts once. */
  key: 'idempotency-key',
  /** On answers with weights: the version they are stamped with. */
  policyVersion: 'x-gyre-policy-version',
} as const

export const CONTENT = {
  json: 'application/json',
  frame: 'application/x-gyre-frame',
  raw: 'application/octet-stream',
  lines: 'application/x-ndjson',
} as const

/** Largest request body a cell reads. [bytes] */
export const MAX_BODY_BYTES = 256 * 1024 * 1024
/** Silence after which a streaming cell writes an empty line. [ms] */
export const HEARTBEAT_MS = 2000

const count = z.number().int().nonnegative()
const finite = z.number()
const version = count

export const healthSchema = z.object({
  protocolVersion: count,
  cellId: z.string(),
  mode: z.enum(['rollout', 'training']),
  epoch: count,
  policyVersion: version,
  running: count,
}) satisfies z.ZodType<CellHealth>

export const helloSchema = z.object({
  protocolVersion: count,
  cellId: z.string(),
  slots: count,
  parameterCount: count,
  maxContext: count,
  vocabSize: count,
  backend: z.string(),
  kv: z.enum(['blocks', 'none']).default('none'),
  policyVersion: version,
  epoch: count,
}) satisfies z.ZodType<Omit<CellHello, 'cellId'> & { cellId: string }>

export const generateSchema = z.object({
  requestId: z.string(),
  executionId: z.string(),
  sampling: z.object({
    maxTokens: count,
    temperature: finite.nonnegative(),
    topP: finite,
    topK: count,
    stopTokenIds: z.array(count),
    seed: z.number().int(),
  }),
})

export const objectiveSchema = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('policy-gradient'),
    clipLow: finite,
    clipHigh: finite,
    ratioBound: finite,
    entropyWeight: finite,
  }),
  z.object({ kind: z.literal('cross-entropy') }),
])

export const optimizerSchema = z.object({
  learningRate: finite,
  beta1: finite,
  beta2: finite,
  epsilon: finite,
  weightDecay: finite,
  gradientClip: finite,
})

export const pullWeightsSchema = z.object({ from: z.string().min(1), policyVersion: version })
export const setPolicyVersionSchema = z.object({ policyVersion: version })
export const reduceGradientsSchema = z.object({ from: z.array(z.string().min(1)) })
export const applyHeldSchema = z.object({ held: z.string().min(1), scale: finite })
export const dropHeldSchema = z.object({ held: z.array(z.string()).optional() })
export const saveCheckpointSchema = z.object({ folder: z.string().min(1) })
export const loadCheckpointSchema = z.object({ folder: z.string().min(1), policyVersion: version })

const executionIds = z.array(z.string())
export const pinKvSchema = z.object({ executionIds, ttlMs: z.number().int().positive().max(3_600_000) })
export const pinnedSchema = z.object({
  pinned: z.array(z.object({ executionId: z.string(), tokens: count, bytes: count })),
})
export const fetchKvSchema = z.object({ from: z.string().min(1), executionIds })
export const fetchedSchema = z.object({ executions: count, tokens: count, bytes: count }) satisfies z.ZodType<FetchedKv>
export const pinnedKvSchema = z.object({ executionIds })
export const kvOfferSchema = z.object({
  layout: z.object({
    name: z.string(),
    blockTokens: z.number().int().positive(),
    blockFloats: z.number().int().positive(),
  }),
  policyVersion: version,
  serial: count,
  sequences: z.array(z.object({ executionId: z.string(), blocks: count })),
})
export const kvBlocksSchema = z.object({ serial: count })
