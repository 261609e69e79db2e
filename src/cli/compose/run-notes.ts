/** @file What of a run is worth a line that stays. Pure. */
import { formatDuration } from '../../core/durations.ts'
import type { ControllerEvent } from '../../run/controller-types.ts'

type Notes = {
  readonly [K in ControllerEvent['kind']]?: (
    event: Extract<ControllerEvent, { readonly kind: K }>,
    engineName: (engine: number) => string,
  ) => string
}

const NOTES: Notes = {
  'role-transfer': ({ cell, to, durationMs, liveExecutions, executionsMoved, requestsMoved, tokensHandedOver }) => {
    const handed = tokensHandedOver > 0 ? `, ${tokensHandedOver} tokens handed over` : ''
    return (
      `cell ${cell} to ${to} in ${formatDuration(durationMs)} with ${liveExecutions} live executions ` +
      `(${executionsMoved} of its own moved, ${requestsMoved} in the middle of a model call${handed})`
    )
  },
  'cell-failed': ({ cell, reason }) => `cell ${cell} failed: ${reason}`,
  'cell-recovered': ({ cell }) => `cell ${cell} is back`,
  'cell-slow': ({ cell, waitedMs, usualMs }) =>
    `cell ${cell} is slow: a micro-step has taken ${formatDuration(waitedMs)}, usually ${formatDuration(usualMs)}`,
  'standalone-failed': ({ engine, reason }, name) => `${name(engine)} failed: ${reason}`,
  'standalone-recovered': ({ engine, durationMs }, name) =>
    `${name(engine)} is back after ${formatDuration(durationMs)}`,
  'hand-over-missed': ({ cell, reason }) => `part of the hand-over of cell ${cell} is computed again: ${reason}`,
  'disk-full': ({ reason, retryInMs }) =>
    `the checkpoint cannot be written: ${reason} (tried again in ${formatDuration(retryInMs)})`,
}

/** @returns undefined for an event that the display shows by itself. */
export function noteOf(event: ControllerEvent, engineName: (engine: number) => string): string | undefined {
  const note = NOTES[event.kind] as ((event: ControllerEvent, name: typeof engineName) => string) | undefined
  return note?.(event, engineName)
}
