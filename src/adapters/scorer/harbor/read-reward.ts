/**
 * @file The number a Harbor verifier left in its log folder. In order of precedence:
 *
 * 1. `reward.json`: a number; or an object of numbers, whose `reward` counts, or their mean when none has that name.
 * 2. `reward.txt`: one number.
 * 3. `ctrf.json`: the share of passed tests among those that were not skipped (Common Test Report Format).
 */
import { lstatSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { GyreError } from '../../../core/errors.ts'
import type { Score } from '../../../ports/scorer.ts'

const MAX_BYTES = 16 * 2 ** 20

const rewardJson = z.union([z.number(), z.record(z.string(), z.number())])
const ctrfJson = z.object({ results: z.object({ tests: z.array(z.object({ status: z.string() })) }) })
const ctrfSummary = z.object({
  results: z.object({ summary: z.object({ tests: z.number(), passed: z.number(), skipped: z.number().optional() }) }),
})

/**
 * undefined when there is no report at all.
 * @throws GyreError E_SCORER_NO_REWARD when there is one that holds no finite number.
 */
export function readReward(folder: string): Score | undefined {
  const json = readReport(folder, 'reward.json')
  if (json !== undefined) return fromJson(json, join(folder, 'reward.json'))
  const text = readReport(folder, 'reward.txt')
  if (text !== undefined) return { reward: finite(text.trim(), join(folder, 'reward.txt')), parts: {} }
  const ctrf = readReport(folder, 'ctrf.json')
  return ctrf === undefined ? undefined : fromCtrf(ctrf, join(folder, 'ctrf.json'))
}

function fromJson(text: string, path: string): Score {
  const parsed = rewardJson.safeParse(parseJson(text, path))
  if (!parsed.success) throw noReward(`${path} must hold a number or an object of numbers, got ${shorten(text)}`)
  if (typeof parsed.data === 'number') return { reward: parsed.data, parts: {} }
  const { reward, ...parts } = parsed.data
  if (reward !== undefined) return { reward, parts }
  const values = Object.values(parts)
  if (values.length === 0) throw noReward(`${path} is an empty object: write at least {"reward": NUMBER}`)
  return { reward: values.reduce((sum, v) => sum + v, 0) / values.length, parts }
}

function fromCtrf(text: string, path: string): Score {
  const raw = parseJson(text, path)
  const { passed, counted } = countTests(raw) ?? countSummary(raw) ?? { passed: 0, counted: undefined }
  if (counted === undefined)
    throw noReward(`${path} is no CTRF report: it has neither results.tests nor results.summary`)
  if (counted <= 0) throw noReward(`${path} reports no test that was run, so there is no share of passed tests`)
  return { reward: passed / counted, parts: { passed, tests: counted } }
}

function countTests(raw: unknown): { passed: number; counted: number } | undefined {
  const parsed = ctrfJson.safeParse(raw)
  if (!parsed.success || parsed.data.results.tests.length === 0) return undefined
  const statuses = parsed.data.results.tests.map((t) => t.status).filter((s) => s !== 'skipped' && s !== 'pending')
  return { passed: statuses.filter((s) => s === 'passed').length, counted: statuses.length }
}

function countSummary(raw: unknown): { passed: number; counted: number } | undefined {
  const parsed = ctrfSummary.safeParse(raw)
  if (!parsed.success) return undefined
  const { tests, passed, skipped } = parsed.data.results.summary
  return { passed, counted: tests - (skipped ?? 0) }
}

/** The text of a plain file. A link is no report: what was tested may have planted it. */
function readReport(folder: string, name: string): string | undefined {
  const path = join(folder, name)
  const stat = lstatSync(path, { throwIfNoEntry: false })
  if (stat === undefined) return undefined
  if (!stat.isFile()) throw noReward(`${path} is not a plain file`)
  if (stat.size > MAX_BYTES) throw noReward(`${path} has ${stat.size} bytes, more than any report needs`)
  return readFileSync(path, 'utf8')
}

function parseJson(text: string, path: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw noReward(`${path} is not JSON: ${shorten(text)}`, error)
  }
}

function finite(text: string, path: string): number {
  const value = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i.test(text) ? Number(text) : Number.NaN
  if (!Number.isFinite(value)) throw noReward(`${path} must hold one finite number, got ${shorten(text)}`)
  return value
}

function shorten(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}...` : text)
}

function noReward(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'scorer', code: 'E_SCORER_NO_REWARD', retryable: true, cause })
}
