/**
 * @file The canonical form of a conversation, whatever dialect it came in.
 *
 * A request is a list of items. Everything the policy said in one turn is ONE
 * `assistant` item, because one model call makes one generated node of the tree.
 */

/** JSON as it stands after parsing. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json }

export interface ToolSpec {
  /** As the policy sees it and calls it. A tool of a namespace is called `NAMESPACE.NAME`. */
  readonly name: string
  readonly description: string
  /** JSON Schema of the arguments. */
  readonly parameters: Json
  /** The part of `name` before the dot, when the dialect keeps it apart. */
  readonly namespace?: string
  /** The harness takes free text for it. The policy gives it as the one argument `input`. */
  readonly isFreeform?: true
}

export interface ToolCall {
  /** Unique within an execution. Ids we serve encode the record they came from. */
  readonly id: string
  readonly name: string
  /** The arguments as JSON text, exactly as generated or exactly as the harness echoed them. */
  readonly argumentsText: string
}

export interface SystemItem {
  readonly kind: 'system'
  readonly text: string
}
export interface ToolsItem {
  readonly kind: 'tools'
  readonly tools: readonly ToolSpec[]
}
export interface UserItem {
  readonly kind: 'user'
  readonly text: string
}
export interface AssistantItem {
  readonly kind: 'assistant'
  readonly thinking: string
  readonly text: string
  readonly toolCalls: readonly ToolCall[]
}
export interface ToolResultItem {
  readonly kind: 'tool-result'
  readonly callId: string
  /** Empty when the dialect does not repeat the name. */
  readonly name: string
  readonly text: string
  readonly isError: boolean
}

/** Order in a request: tools first, then system, then the conversation as it was sent. */
export type Item = SystemItem | ToolsItem | UserItem | AssistantItem | ToolResultItem
/** An item that the harness wrote (everything but an assistant turn). */
export type HarnessItem = Exclude<Item, AssistantItem>

export type FinishReason = 'stop' | 'tool-calls' | 'length'

/** Token counts of one model call, as reported to the harness. [tokens] */
export interface Usage {
  readonly promptTokens: number
  readonly cachedTokens: number
  readonly completionTokens: number
}
