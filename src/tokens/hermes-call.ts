/** @file A call as one JSON object: `{"name": NAME, "arguments": {...}}`. */
import { memberText } from './json-span.ts'
import type { CallText } from './turn-parser.ts'

/** The arguments keep the text that was sampled. */
export function readHermesCall(text: string): CallText | undefined {
  let call: unknown
  try {
    call = JSON.parse(text)
  } catch {
    return undefined
  }
  if (!isObject(call) || typeof call['name'] !== 'string' || !isObject(call['arguments'])) return undefined
  const argumentsText = memberText(text, 'arguments')
  return argumentsText === undefined ? undefined : { name: call['name'], argumentsText }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
