/** @file What a policy sampled, as text that another tokenizer can say too. */
import type { AssistantItem } from '../core/items.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { PolicyNode } from '../trajectory/node.ts'
import type { RecordedCall, RecordedSample } from './format.ts'

/** The most readable form that gives the same ids back. */
export function sampledText(node: PolicyNode, codec: ChatCodec): Pick<RecordedCall, 'sampled' | 'end'> {
  const ids = node.tokenIds
  const last = ids.at(-1)
  const isStopped = last !== undefined && codec.stopTokenIds.includes(last)
  const body = isStopped ? ids.subarray(0, -1) : ids
  const end = isStopped ? 'stop' : node.finishReason === 'length' && node.status !== 'aborted' ? 'length' : 'open'
  if (isStopped && sameIds(codec.encodeTurn(node.turn), ids)) return { end, sampled: turnSample(node.turn) }
  const raw = codec.decode(body)
  if (sameIds(codec.encodeSampled(raw), body)) return { end, sampled: { raw } }
  return { end, sampled: { ids: [...body] } }
}

/** The ids of a recorded sample. */
export function sampledIds({ sampled, end }: Pick<RecordedCall, 'sampled' | 'end'>, codec: ChatCodec): Int32Array {
  if (isTurn(sampled)) return codec.encodeTurn(turnOf(sampled))
  const body = 'ids' in sampled ? sampled.ids : codec.encodeSampled(sampled.raw)
  return Int32Array.from([...body, ...(end === 'stop' ? codec.stopTokenIds.slice(0, 1) : [])])
}

type TurnSample = Exclude<RecordedSample, { raw: string } | { ids: number[] }>

function isTurn(sampled: RecordedSample): sampled is TurnSample {
  return !('raw' in sampled) && !('ids' in sampled)
}

function turnSample({ thinking, text, toolCalls }: AssistantItem): RecordedSample {
  const calls = toolCalls.map((call) => ({ name: call.name, arguments: call.argumentsText }))
  return {
    ...(thinking === '' ? {} : { thinking }),
    ...(text === '' ? {} : { text }),
    ...(calls.length === 0 ? {} : { calls }),
  }
}

function turnOf({ thinking = '', text = '', calls = [] }: TurnSample): AssistantItem {
  const toolCalls = calls.map((call) => ({ id: '', name: call.name, argumentsText: call.arguments }))
  return { kind: 'assistant', thinking, text, toolCalls }
}

function sameIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i])
}
