/** @file A context cut at the places where the policy was asked to speak. */
import type { ChatCodec } from '../tokens/codec.ts'

export interface ContextParts {
  /** Before the first turn. */
  readonly head: Int32Array
  /** Earlier turns with what the harness answered to each. */
  readonly exchanges: readonly ContextExchange[]
  /** What the last turn has so far: not empty when a generation goes on elsewhere. */
  readonly partial: Int32Array
  /** Where the last turn begins. [tokens] */
  readonly turnStart: number
}

export interface ContextExchange {
  /** End-of-turn included. */
  readonly turn: Int32Array
  readonly block: Int32Array
}

/** Text from outside can never hold the ids of a generation prompt, so each of them begins a turn. */
export function splitContext(ids: Int32Array, codec: ChatCodec): ContextParts {
  const opening = codec.encodeGenerationPrompt()
  const starts = occurrences(ids, opening)
  const exchanges = starts.slice(0, -1).map((start, i) => {
    const part = ids.subarray(start + opening.length, starts[i + 1])
    const stop = part.findIndex((id) => codec.stopTokenIds.includes(id))
    const end = stop < 0 ? part.length : stop + 1
    return { turn: part.subarray(0, end), block: part.subarray(end) }
  })
  const turnStart = (starts.at(-1) ?? 0) + opening.length
  return { head: ids.subarray(0, starts[0] ?? 0), exchanges, partial: ids.subarray(turnStart), turnStart }
}

/** Every offset at which `part` stands in `ids`. */
function occurrences(ids: Int32Array, part: Int32Array): readonly number[] {
  const first = part[0]
  if (first === undefined) return []
  const found: number[] = []
  for (let i = ids.indexOf(first); i >= 0; i = ids.indexOf(first, i + 1)) {
    if (part.every((id, k) => ids[i + k] === id)) found.push(i)
  }
  return found
}
