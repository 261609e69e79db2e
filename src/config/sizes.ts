import { GyreError } from '../core/errors.ts'

const UNITS: Readonly<Record<string, number>> = {
  '': 1,
  B: 1,
  kB: 1e3,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
}

/**
 * Parses `512MiB`, `1.5GB`, `0`. [bytes]
 * @throws GyreError E_CONFIG_SIZE when the text is anything else.
 */
export function parseSize(text: string): number {
  const [, digits, unit = ''] = /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$/.exec(text.trim()) ?? []
  const scale = UNITS[unit]
  if (digits === undefined || scale === undefined) {
    throw new GyreError(`"${text}" is not a size: write a number and a unit, such as 512MiB or 2GB`, {
      boundary: 'config',
      code: 'E_CONFIG_SIZE',
    })
  }
  return Math.round(Number(digits) * scale)
}

/** The shortest text in binary units: `512 B`, `1.5 GiB`. */
export function formatSize(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let value = bytes
  let unit = 0
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024
    unit++
  }
  return `${Number(value.toFixed(value < 10 ? 1 : 0))} ${units[unit] ?? ''}`
}
