import { describe, expect, test } from 'vitest'
import {
  EXECUTION,
  call,
  callRecord,
  newTree,
  result,
  system,
  toolCall,
  tools,
  turn,
  user,
} from '../../test/support/trees.ts'
import { InvariantError } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import type { AssistantItem, Item } from '../core/items.ts'
import type { CallRecord } from './node.ts'
import { ExecutionTree } from './tree.ts'

const HEAD: readonly Item[] = [tools('bash', 'read'), system('You are an agent.'), user('Fix the bug.')]
const SERVED = turn('Let me look. ', [
  toolCall('call_4', 'bash', '{"description" :  "run it",\n "timeout": 5000.0,  "command": "echo caf\\u00e9 \\/tmp" }'),
])

/** A tree with one call that answered `served`. */
function served(reply: AssistantItem): { tree: ExecutionTree; node: number } {
  const tree = newTree()
  const record = call(tree, HEAD, reply)
  return { tree, node: record.nodes.at(-1)?.id ?? -1 }
}

const bash = (id: string, argumentsText: string, name = 'bash'): AssistantItem =>
  turn('Let me look. ', [toolCall(id, name, argumentsText)])
const last = (record: CallRecord): number => record.nodes.at(-1)?.id ?? -1

describe('matching an echo of a served turn', () => {
  const thinking = turn('Done.', [], 'I think it is done.\n')
  const broken = turn('', [toolCall('call_4', 'bash', '{"command": "echo broken')])
  const unknown = turn('', [toolCall('call_4', 'fly', '{"to":"moon"}')])
  const same: readonly (readonly [string, AssistantItem, AssistantItem])[] = [
    ['verbatim', SERVED, SERVED],
    [
      're-keyed, 5000.0 as 5000, other escapes',
      SERVED,
      bash('call_4', '{"command":"echo café /tmp","description":"run it","timeout":5000}'),
    ],
    [
      'the same under a new id',
      SERVED,
      bash('run_shell_command_1_0', '{"command":"echo café /tmp","timeout":5000,"description":"run it"}'),
    ],
    [
      'unknown keys stripped and defaults added',
      SERVED,
      bash('call_4', '{"command":"echo café /tmp","timeout":"5000","background":false}'),
    ],
    ['trailing whitespace dropped', SERVED, turn('Let me look.', SERVED.toolCalls)],
    ['trailing newline added', turn('Done.'), turn('Done.\n')],
    ['thinking stripped', thinking, turn('Done.')],
    ['thinking trimmed', thinking, turn('Done.', [], 'I think it is done.')],
    [
      'renamed invalid by opencode',
      unknown,
      turn('', [toolCall('call_4', 'invalid', '{"tool":"fly","error":"unknown tool"}')]),
    ],
    [
      'bad JSON renamed invalid by opencode',
      broken,
      turn('', [toolCall('call_4', 'invalid', '{"tool":"bash","error":"JSON parsing failed"}')]),
    ],
    [
      'wrapped by Claude Code',
      broken,
      turn('', [
        toolCall('call_4', 'bash', '{"__unparsedToolInput":{"raw":"{\\"command\\": \\"echo broken","len":24}}'),
      ]),
    ],
    ['truncated JSON repaired by pi', broken, turn('', [toolCall('call_4', 'bash', '{"command":"echo broken"}')])],
    ['bad JSON kept by codex', broken, broken],
    ['a lone surrogate replaced on the wire', turn('a\ud800b'), turn('a\ufffdb')],
    ['no arguments as an empty object', turn('', [toolCall('c', 'ls', '')]), turn('', [toolCall('c', 'ls', '{}')])],
  ]
  test.each(same)('%s: the same node', (_, reply, echo) => {
    const { tree, node } = served(reply)
    expect(tree.match([...HEAD, echo, result('call_4', 'ok')])).toEqual({ parent: node, matchedItems: 4 })
  })

  const other: readonly (readonly [string, AssistantItem, AssistantItem])[] = [
    ['text rewritten', SERVED, turn('Let me look again.', SERVED.toolCalls)],
    [
      'a value rewritten under the same id',
      SERVED,
      bash('call_4', '{"command":"rm -rf /","description":"run it","timeout":5000}'),
    ],
    ['arguments blanked', SERVED, bash('call_4', '{}')],
    ['the call dropped', SERVED, turn('Let me look. ')],
    ['a call added', turn('Done.'), turn('Done.', [toolCall('c', 'bash', '{}')])],
    ['another tool', SERVED, bash('call_4', SERVED.toolCalls[0]?.argumentsText ?? '', 'read')],
    ['thinking rewritten', thinking, turn('Done.', [], 'I gave up.')],
  ]
  test.each(other)('%s: a branch', (_, reply, echo) => {
    const { tree } = served(reply)
    const { parent, matchedItems } = tree.match([...HEAD, echo, result('call_4', 'ok')])
    expect(matchedItems).toBe(3)
    expect(tree.node(parent)?.provenance).toBe('harness')
  })

  test('a dropped turn (qwen-code after bad JSON) matches up to the user item', () => {
    const { tree } = served(broken)
    expect(tree.match(HEAD).matchedItems).toBe(3)
  })
})

describe('matching', () => {
  test('an unknown first item hangs on the root', () => {
    const { tree } = served(SERVED)
    expect(tree.match([user('another conversation')])).toEqual({ parent: 0, matchedItems: 0 })
  })

  test('a run of tool results that is only partly equal is a branch', () => {
    const tree = newTree()
    const both = turn('', [toolCall('a', 'bash', '{"n":1}'), toolCall('b', 'bash', '{"n":2}')])
    const at = call(tree, HEAD, both).nodes.at(-1)?.id
    call(tree, [...HEAD, both, result('a', 'one'), result('b', 'two')], turn('ok'))
    expect(tree.match([...HEAD, both, result('a', 'one'), result('b', 'TWO')])).toEqual({ parent: at, matchedItems: 4 })
    expect(tree.match([...HEAD, both, result('a', 'one')])).toEqual({ parent: at, matchedItems: 4 })
    expect(tree.match([...HEAD, both, result('x', 'one'), result('y', 'two')]).matchedItems).toBe(6)
  })

  test('equal turns: the committed one before the orphan, a known call id before both', () => {
    const tree = newTree()
    const first = call(tree, HEAD, turn('', [toolCall('a', 'bash', '{}')]))
    const second = call(tree, HEAD, turn('', [toolCall('b', 'bash', '{}')]))
    tree.markOrphan(second.callId)
    const at = (id: string): number => tree.match([...HEAD, turn('', [toolCall(id, 'bash', '{}')])]).parent
    expect(at('replaced')).toBe(first.nodes.at(-1)?.id)
    expect(at('b')).toBe(second.nodes.at(-1)?.id)
  })

  test('the deepest of two equal beginnings wins', () => {
    const tree = newTree()
    const first = call(tree, HEAD, turn('same'))
    const next = call(tree, [...HEAD, turn('same'), user('go on')], turn('went on'))
    call(tree, HEAD, turn('same'))
    expect(next.nodes[0]?.parent).toBe(first.nodes.at(-1)?.id)
    const history = [...HEAD, turn('same'), user('go on'), turn('went on')]
    expect(tree.match(history)).toEqual({ parent: next.nodes.at(-1)?.id, matchedItems: 6 })
  })

  test('finds the turns behind a re-used tool id after a compaction', () => {
    const { tree, node } = served(SERVED)
    expect(tree.nodesOfToolCall('call_4')).toEqual([node])
    expect(tree.match([user('continued: summary'), SERVED]).parent).toBe(0)
  })

  test('an imported turn matches its harness node', () => {
    const tree = newTree()
    call(tree, [...HEAD, turn('imported'), user('and?')], turn('so'))
    const { parent, matchedItems } = tree.match([...HEAD, turn('imported'), user('and?'), turn('so')])
    expect(matchedItems).toBe(6)
    expect(tree.node(parent)?.provenance).toBe('policy')
    const imported = tree.pathNodes(parent).find((n) => n.provenance === 'harness' && n.items[0]?.kind === 'assistant')
    expect(tree.contextOf(imported?.id ?? -1)).toBe('turn-closed')
  })
})

describe('the tree', () => {
  test('says what stands before the next block', () => {
    const tree = newTree()
    const closed = call(tree, HEAD, turn('a'))
    const open = call(tree, HEAD, turn('b'), { finishReason: 'length' })
    expect([0, 1, last(closed), last(open)].map((id) => tree.contextOf(id))).toEqual([
      'start',
      'harness',
      'turn-closed',
      'turn-open',
    ])
  })

  test('an orphan whose answer is used after all is committed again, also on replay', () => {
    const tree = newTree()
    const first = call(tree, HEAD, turn('a'))
    tree.markOrphan(first.callId)
    const status = (t: ExecutionTree): unknown => {
      const node = t.node(last(first))
      return node?.provenance === 'policy' ? node.status : undefined
    }
    expect(status(tree)).toBe('orphan')
    const stored = [tree.node(1), tree.node(2), tree.node(3), tree.node(4)].filter((n) => n !== undefined)
    const second = call(tree, [...HEAD, turn('a'), user('b')], turn('c'))
    expect(status(tree)).toBe('committed')
    tree.markOrphan(first.callId)
    expect(status(tree)).toBe('committed')
    expect(status(ExecutionTree.fromRecords(EXECUTION, [{ ...first, nodes: stored }, second]))).toBe('committed')
  })

  test('refuses a record that does not fit, and stays as it was', () => {
    const tree = newTree()
    const good = callRecord(tree, HEAD, turn('a'))
    const generated = good.nodes.at(-1)
    const bad: CallRecord[] = [
      { ...good, executionId: executionId('other') },
      { ...good, sequence: 3 },
      { ...good, nodes: good.nodes.slice(1) },
      { ...good, nodes: good.nodes.slice(0, -1) },
      { ...good, nodes: [] },
      {
        ...good,
        nodes: good.nodes.map(
          (n) => (n === generated ? { ...n, behaviorLogprobs: new Float32Array(1) } : n) as typeof n,
        ),
      },
    ]
    for (const record of bad) expect(() => tree.commit(record)).toThrow(InvariantError)
    expect([tree.nextNodeId, tree.nextSequence]).toEqual([1, 0])
    tree.commit(good)
    expect(() => tree.commit({ ...good, sequence: 1 })).toThrow(InvariantError)
  })
})
