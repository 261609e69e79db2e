/** @file The two logs of a run folder: `events.jsonl`, what happened when, and `metrics.jsonl`, one line per training step. */
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import { openJsonl, readJsonl } from './jsonl.ts'

export interface RunLog {
  /** Appends to events.jsonl with the time. Secrets never belong here. */
  event(kind: string, facts?: Readonly<Record<string, unknown>>): void
  /** Appends to metrics.jsonl with the time. A step that is done again after a resume is written again. */
  step(step: number, metrics: Readonly<Record<string, number>>): void
  close(): void
}

/** @param clock milliseconds since the Unix epoch. The folder must exist. */
export function openRunLog(folder: string, clock: Clock): RunLog {
  const events = openJsonl(join(folder, 'events.jsonl'))
  const metrics = openJsonl(join(folder, 'metrics.jsonl'))
  return {
    event: (kind, facts = {}) => events.write({ atMs: Math.round(clock.now()), kind, ...facts }),
    step: (step, values) => metrics.write({ atMs: Math.round(clock.now()), step, ...values }),
    close: () => {
      events.close()
      metrics.close()
    },
  }
}

export type StepMetrics = { readonly step: number } & Readonly<Record<string, number>>

/** Steps of metrics.jsonl in order. What a resumed run did again replaces what was lost. */
export function readStepMetrics(folder: string): readonly StepMetrics[] {
  const steps: StepMetrics[] = []
  for (const line of readJsonl(join(folder, 'metrics.jsonl'))) {
    const { step } = line
    if (typeof step !== 'number') continue
    while ((steps.at(-1)?.step ?? 0) >= step) steps.pop()
    steps.push(line as StepMetrics)
  }
  return steps
}
