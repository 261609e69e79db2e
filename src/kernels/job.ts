/** @file What the leading thread asks of all threads, passed through the control region of the shared memory. */
import { accumulateGradient, discardGradient, type Refusal, roundSums, zeroSums } from './accumulate.ts'
import { JOB_WORDS, jobBarrier, type Machine } from './machine.ts'
import type { TokenObjective } from './objective.ts'
import { sampleStep } from './sample-step.ts'
import { trainBackward } from './train-backward.ts'
import { trainForward } from './train-forward.ts'
import { trainTargets } from './train-targets.ts'
import { type AdamParams, adamStep, gradientNorm, packBackward, packForward } from './weights.ts'

export type Job =
  | { readonly kind: 'stop' }
  | { readonly kind: 'pack' }
  | { readonly kind: 'zero-gradients' }
  | { readonly kind: 'sample'; readonly rows: number; readonly segments: number; readonly outputs: number }
  /** Reads the batch from `plan.train`, leaves its gradient in `plan.gradients`: zero when a loss is refused. */
  | { readonly kind: 'train'; readonly rows: number; readonly targets: number; readonly objective: TokenObjective }
  /** Adds `plan.gradients` to the sums, or nothing when it is refused, and makes it zero. */
  | { readonly kind: 'accumulate' }
  /** One update from the sums, which are then zero. */
  | { readonly kind: 'optimize'; readonly step: number; readonly params: AdamParams }

const KINDS = ['stop', 'pack', 'zero-gradients', 'sample', 'train', 'accumulate', 'optimize'] as const
const DOUBLES = 64

/** What all threads found: the gradient norm of `optimize`, what was refused in `train` or `accumulate`. */
export interface JobResult {
  readonly norm?: number
  readonly refusal?: Refusal | undefined
}

/** Runs a job on all threads and returns when it is done. */
export function runJob(m: Machine, job: Job): JobResult {
  if (m.threads > 1) {
    writeJob(m, job)
    jobBarrier(m)
  }
  return perform(m, job)
}

/** The life of a thread that does not lead. */
export function followJobs(m: Machine): void {
  for (;;) {
    jobBarrier(m)
    const job = readJob(m)
    if (job.kind === 'stop') return
    perform(m, job)
  }
}

function perform(m: Machine, job: Job): JobResult {
  switch (job.kind) {
    case 'stop':
      return {}
    case 'pack':
      packForward(m)
      packBackward(m)
      return {}
    case 'zero-gradients':
      zeroSums(m)
      return {}
    case 'sample':
      sampleStep(m, job)
      return {}
    case 'train':
      return { refusal: train(m, job) }
    case 'accumulate':
      return { refusal: accumulateGradient(m) }
    case 'optimize': {
      roundSums(m)
      const norm = gradientNorm(m)
      adamStep(m, job.params, norm, job.step)
      return { norm }
    }
    default:
      return job satisfies never
  }
}

function train(m: Machine, job: Extract<Job, { readonly kind: 'train' }>): Refusal | undefined {
  trainForward(m, job.rows)
  trainTargets(m, job.rows, job.targets, job.objective)
  if (!hasFiniteLosses(m, job.targets)) {
    discardGradient(m)
    return 'nonfinite'
  }
  trainBackward(m, job.rows)
  return undefined
}

/** True when every target's weighted loss is a number. */
function hasFiniteLosses(m: Machine, targets: number): boolean {
  const at = m.plan.train.targetLosses / 8
  for (let i = 0; i < targets; i++) if (!Number.isFinite(m.f64[at + i])) return false
  return true
}

function writeJob(m: Machine, job: Job): void {
  const at = m.plan.control / 4 + JOB_WORDS
  const doubles = m.plan.control / 8 + DOUBLES
  m.i32[at] = KINDS.indexOf(job.kind)
  if (job.kind === 'sample') m.i32.set([job.rows, job.segments, job.outputs], at + 1)
  if (job.kind === 'train') {
    const o = job.objective
    m.i32.set([job.rows, job.targets, o.kind === 'cross-entropy' ? 0 : 1], at + 1)
    if (o.kind === 'policy-gradient') m.f64.set([o.clipLow, o.clipHigh, o.ratioBound, o.entropyWeight], doubles)
  }
  if (job.kind === 'optimize') {
    const p = job.params
    m.i32[at + 1] = job.step
    m.f64.set([p.learningRate, p.beta1, p.beta2, p.epsilon, p.weightDecay, p.gradientClip], doubles)
  }
}

function readJob(m: Machine): Job {
  const at = m.plan.control / 4 + JOB_WORDS
  const word = (i: number): number => m.i32[at + i] ?? 0
  const double = (i: number): number => m.f64[m.plan.control / 8 + DOUBLES + i] ?? 0
  const kind = KINDS[word(0)] ?? 'stop'
  switch (kind) {
    case 'stop':
    case 'pack':
    case 'zero-gradients':
    case 'accumulate':
      return { kind }
    case 'sample':
      return { kind, rows: word(1), segments: word(2), outputs: word(3) }
    case 'train':
      return { kind, rows: word(1), targets: word(2), objective: word(3) === 0 ? CROSS_ENTROPY : gradientOf(double) }
    case 'optimize':
      return {
        kind,
        step: word(1),
        params: {
          learningRate: double(0),
          beta1: double(1),
          beta2: double(2),
          epsilon: double(3),
          weightDecay: double(4),
          gradientClip: double(5),
        },
      }
    default:
      return kind satisfies never
  }
}

const CROSS_ENTROPY: TokenObjective = { kind: 'cross-entropy' }

function gradientOf(double: (i: number) => number): TokenObjective {
  return {
    kind: 'policy-gradient',
    clipLow: double(0),
    clipHigh: double(1),
    ratioBound: double(2),
    entropyWeight: double(3),
  }
}
