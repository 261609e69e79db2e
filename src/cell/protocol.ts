/**
 * @file The names both ends of the cell protocol share: paths, headers, deadlines, JSON bodies.
 * docs/cell-protocol.md is its specification.
 */
import { z } from 'zod'
import { CELL_PROTOCOL_VERSION } from '../ports/cell.ts'
import type { CellHealth, CellHello } from '../ports/cell.ts'

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
  'reduce-gradients': { method: 'POST', fenced: true },
  'optimizer-step': { method: 'POST', fenced: true },
  'save-checkpoint': { method: 'POST', fenced: true },
  'load-checkpoint': { method: 'POST', fenced: true },
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
export const saveCheckpointSchema = z.object({ folder: z.string().min(1) })
export const loadCheckpointSchema = z.object({ folder: z.string().min(1), policyVersion: version })
