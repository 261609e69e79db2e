import { expect, test } from 'vitest'
import { call, callRecord, encode, newTree, result, toolCall, turn, user } from '../../test/support/trees.ts'
import type { AssistantItem, Item } from '../core/items.ts'
import type { CallRecord, TreeNode } from '../trajectory/node.ts'
import type { ExecutionTree } from '../trajectory/tree.ts'
import { wrongContexts } from './contexts.ts'
import type { AskedCall } from './contexts.ts'

const codec = {
  decode: (ids: ArrayLike<number>) => String.fromCodePoint(...Array.from(ids, (id) => Math.max(32, id - 10))),
}
const START = [user('go')]
const SAID = turn('look', [toolCall('call_0_0', 'bash', '{"b": 1.0, "a": "x"}')], 'hm')
/** As a harness sends it back. */
const ECHO = turn('look', [toolCall('call_0_0', 'bash', '{"a":"x","b":1}')])
const NEXT: readonly Item[] = [...START, ECHO, result('call_0_0', 'output')]

/** What the engine saw of a call: the path to the turn it sampled. */
function asked(tree: ExecutionTree, record: CallRecord, items: readonly Item[]): AskedCall {
  const parent = record.nodes.at(-1)?.parent ?? 0
  return { callId: record.callId, committedBefore: record.sequence, context: tree.pathTokenIds(parent), items }
}

/** The second call of a session, on the nodes it is given. */
function session(items: readonly Item[], nodes?: (tree: ExecutionTree) => readonly Item[]): readonly string[] {
  const tree = newTree()
  const first = call(tree, START, SAID)
  const second = callRecord(tree, nodes === undefined ? items : nodes(tree), turn('done'))
  tree.commit(second)
  return wrongContexts([asked(tree, first, START), asked(tree, second, items)], tree, codec).map(({ why }) => why)
}

/** Nodes of the harness alone, whatever was sampled before. */
function imported(tree: ExecutionTree, items: readonly Item[], reply: AssistantItem): CallRecord {
  const record = callRecord(newTree(), items, reply)
  const from = tree.nextNodeId - 1
  const nodes = record.nodes.map((node): TreeNode => ({
    ...node,
    id: node.id + from,
    parent: node.parent === 0 ? 0 : node.parent + from,
  }))
  return {
    ...record,
    callId: `call-${tree.nextSequence}` as CallRecord['callId'],
    sequence: tree.nextSequence,
    nodes: nodes.map((node) =>
      node.provenance === 'policy' ? { ...node, callId: `call-${tree.nextSequence}` as CallRecord['callId'] } : node,
    ),
  }
}

test('the sampled ids under an echo in another spelling are right', () => {
  expect(session(NEXT)).toEqual([])
})

test('a new encoding of a turn that was sampled there is wrong, and right for a turn that was not', () => {
  const tree = newTree()
  const first = call(tree, START, SAID)
  const again = imported(tree, NEXT, turn('done'))
  tree.commit(again)
  const rewritten: readonly Item[] = [...START, turn('something else'), user('on')]
  const other = imported(tree, rewritten, turn('done'))
  tree.commit(other)
  const wrong = wrongContexts(
    [asked(tree, first, START), asked(tree, again, NEXT), asked(tree, other, rewritten)],
    tree,
    codec,
  )
  expect(wrong).toEqual([
    { callId: 'call-1', why: expect.stringContaining('turn 0 of the request was sampled in call call-0') },
  ])
})

test('sampled ids for a turn the request rewrote are wrong', () => {
  const rewritten = [
    ...START,
    turn('look', [toolCall('call_0_0', 'bash', '{"a":"y","b":1}')]),
    result('call_0_0', 'output'),
  ]
  expect(session(rewritten, () => NEXT)).toEqual([expect.stringContaining('the request says something else')])
})

test('a turn too many or too few, a lost text and other ids are wrong', () => {
  expect(session(START, () => NEXT)).toEqual([expect.stringContaining('holds 0 turns of the policy, the context 1')])
  expect(session([...START, ECHO, result('call_0_0', 'another output')], () => NEXT)).toEqual([
    expect.stringContaining('another output'),
  ])
  const tree = newTree()
  const first = call(tree, START, SAID)
  const seen = { ...asked(tree, first, START), context: Int32Array.from([...encode(user('go')), 7]) }
  expect(wrongContexts([seen], tree, codec)).toEqual([{ callId: 'call-0', why: expect.stringContaining('other ids') }])
})

test('the same words where they were not served are an import', () => {
  const tree = newTree()
  const first = call(tree, START, SAID)
  const compacted: readonly Item[] = [user('a summary of all'), ECHO, result('call_0_0', 'output')]
  const second = call(tree, compacted, turn('done'))
  expect(wrongContexts([asked(tree, first, START), asked(tree, second, compacted)], tree, codec)).toEqual([])
})
