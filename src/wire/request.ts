/** @file A whole body of any dialect as canonical items. */
import type { AssistantItem, Item } from '../core/items.ts'
import type { Dialect, Envelope, ParsedRequest, RequestTarget } from './dialect.ts'
import { malformed } from './validate.ts'

/** @throws GyreError E_WIRE_MALFORMED or E_WIRE_UNSUPPORTED, naming the place in the body. */
export function parseRequest(dialect: Dialect, body: unknown, target: RequestTarget = {}): ParsedRequest {
  const envelope = dialect.parseEnvelope(body, target)
  const field = dialect.conversation
  const given = (body as Readonly<Record<string, unknown>>)[field]
  const elements = dialect.listOf === undefined ? given : dialect.listOf(given)
  if (!Array.isArray(elements)) throw malformed(field, 'must be a list')
  const conversation = elements.flatMap((element, i) => dialect.parseElement(element, `${field}.${i}`, envelope))
  return assembled(dialect, envelope, dialect.splitsTurns ? joinedTurns(conversation) : conversation)
}

function assembled(dialect: Dialect, envelope: Envelope, conversation: readonly Item[]): ParsedRequest {
  const last = conversation.at(-1)
  if (last === undefined) throw malformed(dialect.conversation, 'must hold at least one message')
  if (last.kind === 'assistant') {
    const why = 'must not end with an assistant message: the policy never continues a given turn'
    throw malformed(dialect.conversation, why)
  }
  return { ...envelope, items: [...headItems(envelope), ...conversation] }
}

/** What stands before the conversation. */
export function headItems({ tools, system }: Envelope): readonly Item[] {
  return tools.length === 0 ? system : [{ kind: 'tools', tools }, ...system]
}

/** Elements of one turn become one item: one model call makes one generated node. */
export function joinedTurns(items: readonly Item[]): readonly Item[] {
  const joined: Item[] = []
  for (const item of items) {
    const last = joined.at(-1)
    if (last?.kind === 'assistant' && item.kind === 'assistant') joined[joined.length - 1] = joinedTurn(last, item)
    else joined.push(item)
  }
  return joined
}

function joinedTurn(a: AssistantItem, b: AssistantItem): AssistantItem {
  return {
    kind: 'assistant',
    thinking: a.thinking + b.thinking,
    text: a.text + b.text,
    toolCalls: [...a.toolCalls, ...b.toolCalls],
  }
}
