/**
 * @file What an answer of the Responses dialect must carry so that its echo says what was generated: the handle of
 * thinking, the two parts of a tool's name, and the free text of a tool that takes no JSON.
 */
import type { Json, ToolCall, ToolSpec } from '../core/items.ts'

/** Leads `encrypted_content` of ours. */
const HANDLE = 'gyre-thinking-1.'

/** Leads the item id of a freeform call whose text is the whole of its arguments. */
const WHOLE = 'ctc_whole_'

/**
 * `encrypted_content` of a reasoning item. It holds the thinking itself, readable by anyone: clients may drop the
 * summary, and a conversation that was re-rooted has no other record of it.
 */
export function thinkingHandle(thinking: string): string {
  return HANDLE + Buffer.from(thinking, 'utf8').toString('base64url')
}

/** Empty for a handle that somebody else made: an echo without its thinking is still an echo. */
export function thinkingOfHandle(handle: string): string {
  return handle.startsWith(HANDLE) ? Buffer.from(handle.slice(HANDLE.length), 'base64url').toString('utf8') : ''
}

/** How the policy sees and calls a tool. */
export function calledName(namespace: string | null | undefined, name: string): string {
  return namespace === null || namespace === undefined || namespace === '' ? name : `${namespace}.${name}`
}

/** An item of `output` that calls a tool, without its id and status. */
export interface CallFields {
  readonly [field: string]: Json
  readonly type: 'function_call' | 'custom_tool_call'
}

/** A tool that the request does not have is called as a function, by the whole name. */
export function callFields(call: ToolCall, tools: readonly ToolSpec[]): CallFields {
  const spec = tools.find((tool) => tool.name === call.name)
  const { namespace } = spec ?? {}
  const name = namespace === undefined ? call.name : call.name.slice(namespace.length + 1)
  const named = { call_id: call.id, name, ...(namespace === undefined ? {} : { namespace }) }
  return spec?.isFreeform === true
    ? { type: 'custom_tool_call', ...named, input: freeText(call.argumentsText) ?? call.argumentsText }
    : { type: 'function_call', ...named, arguments: call.argumentsText }
}

/** Unique with a unique `suffix`; says which of its two forms the input of a freeform call has. */
export function callItemId(call: ToolCall, type: CallFields['type'], suffix: string): string {
  if (type === 'function_call') return `fc_${suffix}`
  return (freeText(call.argumentsText) === undefined ? WHOLE : 'ctc_') + suffix
}

/** The arguments that `input` of a freeform call was made of. */
export function freeformArguments(input: string, itemId: string | null | undefined): string {
  return itemId?.startsWith(WHOLE) === true ? input : JSON.stringify({ input })
}

/** The one argument of a freeform call; undefined when the policy gave other ones. */
function freeText(argumentsText: string): string | undefined {
  try {
    const value = JSON.parse(argumentsText) as Json
    const input: unknown = typeof value === 'object' && value !== null ? Reflect.get(value, 'input') : undefined
    return typeof input === 'string' ? input : undefined
  } catch {
    return undefined
  }
}
