/** @file Kinds of fields. Each says its unit in its description; the default is given where the field is declared. */
import { z } from 'zod'
import { parseDuration } from '../core/durations.ts'
import { parseSize } from './sizes.ts'

/** A whole number of at least `min`. */
export const count = (min: number, meaning: string): z.ZodNumber =>
  z
    .int()
    .min(min)
    .max(2 ** 31 - 1)
    .describe(meaning)

/** A real number in [min, max]. */
export const real = (min: number, max: number, meaning: string): z.ZodNumber =>
  z.number().min(min).max(max).describe(meaning)

export const toggle = (meaning: string): z.ZodBoolean => z.boolean().describe(meaning)

export const text = (meaning: string): z.ZodString => z.string().min(1).describe(meaning)

/** `60s`, `2h30m`; stays text, so that a resolved file reads like the one that was written. */
export const duration = (meaning: string): z.ZodString =>
  z
    .string()
    .refine((value) => parses(parseDuration, value), 'a duration such as 90s, 15m or 2h30m')
    .describe(`${meaning} [duration, such as 90s or 2h30m]`)

/** `512MiB`, `2GB`; `0` for no limit. */
export const size = (meaning: string): z.ZodString =>
  z
    .string()
    .refine((value) => parses(parseSize, value), 'a size such as 512MiB or 2GB, or "0" for no limit')
    .describe(`${meaning} [size, such as 512MiB; "0" for no limit]`)

export const choice = <const Values extends readonly [string, ...string[]]>(
  values: Values,
  meaning: string,
): z.ZodEnum<{ [V in Values[number]]: V }> => z.enum(values).describe(meaning)

function parses(parse: (value: string) => number, value: string): boolean {
  try {
    parse(value)
    return true
  } catch {
    return false
  }
}
