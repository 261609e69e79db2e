/** @file What the dialects share when they write an answer that is not streamed. */
import type { Json, ToolCall } from '../core/items.ts'
import type { AnswerPart } from './dialect.ts'

/** Pieces of the same kind in a row as one: what a client makes of a stream of them. */
export function joinedParts(parts: readonly AnswerPart[]): readonly AnswerPart[] {
  const joined: AnswerPart[] = []
  for (const part of parts) {
    const last = joined.at(-1)
    if (part.kind !== 'tool-call' && last?.kind === part.kind) {
      joined[joined.length - 1] = { kind: part.kind, text: last.text + part.text }
    } else joined.push(part)
  }
  return joined
}

/** The arguments are a JSON object by the contract of the output parser. */
export function argumentsOf(call: ToolCall): Json {
  return JSON.parse(call.argumentsText) as Json
}
