import { GyreError } from './errors.ts'

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const
const PART = /(\d+(?:\.\d+)?)(ms|s|m|h|d)/gy

/**
 * Parses `90s`, `2h30m`, `250ms`. [ms]
 * @throws GyreError E_CONFIG_DURATION when the text is anything else.
 */
export function parseDuration(text: string): number {
  let total = 0
  let end = 0
  for (const match of text.matchAll(PART)) {
    total += Number(match[1]) * UNIT_MS[match[2] as keyof typeof UNIT_MS]
    end += match[0].length
  }
  if (end === 0 || end !== text.length) {
    throw new GyreError(`"${text}" is not a duration: write a number and a unit, such as 90s, 15m or 2h30m`, {
      boundary: 'config',
      code: 'E_CONFIG_DURATION',
    })
  }
  return total
}

/** The shortest faithful text of a duration: `850ms`, `12.3s`, `4m05s`, `2h30m`. */
export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)}ms`
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)}s`
  const seconds = Math.round(ms / 1000)
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${twoDigits(seconds % 60)}s`
  return `${Math.floor(seconds / 3600)}h${twoDigits(Math.floor((seconds % 3600) / 60))}m`
}

function twoDigits(n: number): string {
  return String(n).padStart(2, '0')
}
