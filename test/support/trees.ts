/** @file A gateway in miniature for tests: matches, groups the tail into blocks, and commits records to a tree. */
import { callId, executionId } from '../../src/core/ids.ts'
import type { AssistantItem, Item, ToolCall, ToolResultItem, UserItem } from '../../src/core/items.ts'
import type { CallRecord, CallStatus, LeafRole, TreeNode } from '../../src/trajectory/node.ts'
import { ExecutionTree } from '../../src/trajectory/tree.ts'

export const EXECUTION = executionId('x1')
const TURN_START = 1
const TURN_END = 2

export const user = (text: string): UserItem => ({ kind: 'user', text })
export const system = (text: string): Item => ({ kind: 'system', text })
export const tools = (...names: string[]): Item => ({
  kind: 'tools',
  tools: names.map((name) => ({ name, description: `runs ${name}`, parameters: { type: 'object', properties: {} } })),
})
export const result = (id: string, text: string, name = ''): ToolResultItem => ({
  kind: 'tool-result',
  callId: id,
  name,
  text,
  isError: false,
})
export const toolCall = (id: string, name: string, argumentsText: string): ToolCall => ({ id, name, argumentsText })
export const turn = (text: string, toolCalls: readonly ToolCall[] = [], thinking = ''): AssistantItem => ({
  kind: 'assistant',
  thinking,
  text,
  toolCalls,
})

/** One id per UTF-16 unit, between a start and an end token. */
export function encode(item: Item): number[] {
  return [TURN_START, ...Array.from(JSON.stringify(item), (char) => 10 + (char.codePointAt(0) ?? 0)), TURN_END]
}

/** Header, single user and system items, runs of tool results. */
function blocksOf(items: readonly Item[], atStart: boolean): Item[][] {
  const blocks: Item[][] = []
  let header = atStart
  for (const item of items) {
    header &&= item.kind === 'tools' || item.kind === 'system'
    const last = blocks.at(-1)
    const joins = header || (item.kind === 'tool-result' && last?.at(-1)?.kind === 'tool-result')
    if (joins && last !== undefined) last.push(item)
    else blocks.push([item])
  }
  return blocks
}

export interface CallOptions {
  readonly id?: string
  readonly role?: LeafRole
  readonly status?: CallStatus
  readonly finishReason?: 'stop' | 'length'
  readonly version?: number
  /** Ids the policy sampled; by default the encoded turn without its start token. */
  readonly tokens?: readonly number[]
  readonly logprobs?: readonly number[]
}

/** The record a gateway would write for this call, on the tree as it stands. */
export function callRecord(
  tree: ExecutionTree,
  items: readonly Item[],
  reply: AssistantItem,
  options: CallOptions = {},
): CallRecord {
  const { parent: start, matchedItems } = tree.match(items)
  const nodes: TreeNode[] = []
  let parent = start
  const hang = (added: readonly Item[], tokenIds: Int32Array): void => {
    const held = nodes.length === 0 ? tree.findHarnessChild(parent, tokenIds) : undefined
    if (held !== undefined) {
      parent = held
      return
    }
    const id = tree.nextNodeId + nodes.length
    nodes.push({ id, parent, provenance: 'harness', items: added, tokenIds })
    parent = id
  }
  for (const block of blocksOf(items.slice(matchedItems), matchedItems === 0)) {
    hang(block, Int32Array.from(block.flatMap(encode)))
  }
  hang([], Int32Array.from([TURN_START]))
  const tokens = options.tokens ?? encode(reply).slice(1)
  const id = callId(options.id ?? `call-${tree.nextSequence}`)
  nodes.push({
    id: tree.nextNodeId + nodes.length,
    parent,
    provenance: 'policy',
    callId: id,
    turn: reply,
    finishReason: options.finishReason ?? 'stop',
    tokenIds: Int32Array.from(tokens),
    behaviorLogprobs: Float32Array.from(options.logprobs ?? tokens.map((t) => -0.01 * (t % 50))),
    policyVersions: new Int32Array(tokens.length).fill(options.version ?? 0),
    status: options.status ?? 'committed',
  })
  return {
    callId: id,
    executionId: tree.executionId,
    sequence: tree.nextSequence,
    dialect: 'openai-chat',
    thread: '',
    role: options.role ?? 'main',
    requestHash: '',
    nodes,
    usage: { promptTokens: tree.pathLength(start), cachedTokens: 0, completionTokens: tokens.length },
    startedAtMs: 0,
    endedAtMs: 0,
    moves: 0,
  }
}

/** Commits one call and returns its record. */
export function call(
  tree: ExecutionTree,
  items: readonly Item[],
  reply: AssistantItem,
  options: CallOptions = {},
): CallRecord {
  const record = callRecord(tree, items, reply, options)
  tree.commit(record)
  return record
}

export function newTree(id = EXECUTION): ExecutionTree {
  return new ExecutionTree(id)
}
