import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { runSession, sessionSteps } from '../../test/support/sessions.ts'
import { call, newTree, system, turn, user } from '../../test/support/trees.ts'
import type { Item } from '../core/items.ts'
import { seededRng } from '../core/rng.ts'
import type { LeafFate as StoredFate } from '../ports/store.ts'
import { type Admission, type Trajectory, admit } from './admission.ts'
import type { CallRecord, LeafRole } from './node.ts'
import type { LeafFate } from './roles.ts'
import { printTree } from './print.ts'

const storable: StoredFate = 'no-gradient' satisfies LeafFate

const HEAD: readonly Item[] = [system('Agent.'), user('Go.')]
const last = (record: CallRecord): number => record.nodes.at(-1)?.id ?? -1
const fates = (admission: Admission): Record<number, string> =>
  Object.fromEntries(admission.leaves.map((leaf) => [leaf.leaf, leaf.fate]))

/** `node:offset` of every token that carries loss. */
function trainedTokens(trajectories: readonly Trajectory[]): string[] {
  return trajectories.flatMap(({ nodes, lossMask }) => {
    const names = nodes.flatMap((node) => Array.from(node.tokenIds, (_, i) => `${node.id}:${i}`))
    expect(names.length).toBe(lossMask.length)
    return names.filter((_, i) => lossMask[i] === 1)
  })
}

describe('properties over random sessions', () => {
  test('every trainable token is trained exactly once without a bound, and at most once with one', () => {
    fc.assert(
      fc.property(sessionSteps, fc.integer({ min: 1, max: 5 }), fc.integer(), (steps, jMax, seed) => {
        const { tree } = runSession(steps)
        const expected = tree.nodes().flatMap((node) => {
          if (node.provenance !== 'policy' || node.status !== 'committed') return []
          if (tree.callOfNode(node.id)?.role === 'side') return []
          const logprobs = [...node.behaviorLogprobs]
          return logprobs.flatMap((logprob, i) => (Number.isNaN(logprob) ? [] : [`${node.id}:${i}`]))
        })
        const all = admit(tree, { jMax: Infinity, rng: seededRng(seed) })
        expect(trainedTokens(all.trajectories).sort()).toEqual(expected.sort())

        const bounded = admit(tree, { jMax, rng: seededRng(seed) })
        const trained = trainedTokens(bounded.trajectories)
        expect(bounded.trajectories.length).toBeLessThanOrEqual(jMax)
        expect(new Set(trained).size).toBe(trained.length)
        expect(bounded.trajectories).toEqual(all.trajectories.slice(0, jMax))
      }),
    )
  })

  test('every leaf has one fate, and the counts of picked ones add up', () => {
    fc.assert(
      fc.property(sessionSteps, fc.integer({ min: 1, max: 3 }), (steps, jMax) => {
        const { tree } = runSession(steps)
        const { trajectories, leaves } = admit(tree, { jMax, rng: seededRng(1) })
        const rows = leaves.map((row) => row.leaf)
        expect(new Set(rows).size).toBe(rows.length)
        for (const leaf of tree.leaves()) expect(rows).toContain(leaf)
        const picked = leaves.filter((row) => row.fate === 'picked')
        expect(new Set(picked.map((row) => row.leaf))).toEqual(new Set(trajectories.map((t) => t.leaf)))
        for (const row of leaves) {
          const mask = trajectories.find((t) => t.leaf === row.leaf)?.lossMask ?? new Uint8Array(0)
          expect(row.trainedTokens).toBe(mask.reduce((sum, bit) => sum + bit, 0))
          expect(row.trainedTokens > 0).toBe(row.fate === 'picked')
        }
      }),
    )
  })

  test('roles come out in order of priority', () => {
    const order: readonly LeafRole[] = ['main', 'main-summary', 'sub-agent', 'sub-agent-summary']
    fc.assert(
      fc.property(sessionSteps, (steps) => {
        const { tree } = runSession(steps)
        const { trajectories } = admit(tree, { jMax: Infinity, rng: seededRng(1) })
        const ranks = trajectories.map((t) => order.indexOf(t.role))
        expect(ranks).toEqual(ranks.toSorted((a, b) => a - b))
      }),
    )
  })
})

describe('fates', () => {
  test('a turn whose only continuation was aborted is still trained', () => {
    const tree = newTree()
    const first = call(tree, HEAD, turn('a'))
    const second = call(tree, [...HEAD, turn('a'), user('b')], turn('c'), { status: 'aborted' })
    const admission = admit(tree, { jMax: 5, rng: seededRng(1) })
    expect(fates(admission)).toEqual({ [last(first)]: 'picked', [last(second)]: 'aborted' })
  })

  test('an orphan, a side call and a branch past the budget say so', () => {
    const tree = newTree()
    const kept = call(tree, HEAD, turn('a'))
    const orphan = call(tree, HEAD, turn('b'))
    tree.markOrphan(orphan.callId)
    const side = call(tree, [user('title?')], turn('A title'), { role: 'side' })
    const agent = call(tree, [user('look around')], turn('looked'), { role: 'sub-agent' })
    expect(fates(admit(tree, { jMax: 1, rng: seededRng(1) }))).toEqual({
      [last(kept)]: 'picked',
      [last(orphan)]: 'orphan',
      [last(side)]: 'side',
      [last(agent)]: 'over-budget',
    })
    const withSide = admit(tree, { jMax: 5, rng: seededRng(1), trainSide: true })
    expect(withSide.trajectories.map((t) => t.role)).toEqual(['main', 'sub-agent', 'side'])
  })

  test('a path over the limit is too long, and what it shares is trained by a shorter one', () => {
    const tree = newTree()
    const short = call(tree, HEAD, turn('a'))
    const branch = call(tree, [...HEAD, turn('a'), user('b')], turn('c'))
    const long = call(tree, [...HEAD, turn('a'), user('b'.repeat(500))], turn('d'))
    const maxTokens = tree.pathLength(last(branch))
    const admission = admit(tree, { jMax: 5, rng: seededRng(1), maxTokens })
    expect(fates(admission)).toEqual({ [last(branch)]: 'picked', [last(long)]: 'too-long' })
    expect(trainedTokens(admission.trajectories).some((name) => name.startsWith(`${last(short)}:`))).toBe(true)
  })

  test('a turn without any log-prob carries no loss', () => {
    const tree = newTree()
    const reply = turn('a')
    const blind = call(tree, HEAD, reply, { tokens: [7, 8], logprobs: [NaN, NaN] })
    const admission = admit(tree, { jMax: 5, rng: seededRng(1) })
    expect(admission.trajectories).toEqual([])
    expect(fates(admission)).toEqual({ [last(blind)]: 'masked' })
    expect(storable).toBe('no-gradient')
  })

  test('leaves of one role are drawn in proportion to their unmasked tokens', () => {
    const tree = newTree()
    const large = call(tree, HEAD, turn('a'), { tokens: [...new Int32Array(90)] })
    call(tree, HEAD, turn('b'), { tokens: [...new Int32Array(10)] })
    const rng = seededRng(7)
    let first = 0
    for (let i = 0; i < 2000; i++) if (admit(tree, { jMax: 1, rng }).trajectories[0]?.leaf === last(large)) first++
    expect(first / 2000).toBeCloseTo(0.9, 1)
  })
})

const decode = (ids: Int32Array): string =>
  String.fromCodePoint(...[...ids].flatMap((id) => (id < 10 ? [] : [id - 10])))

test('prints a tree with roles, masks, previews and the reason for every leaf', () => {
  const tree = newTree()
  call(tree, HEAD, turn('a'), { tokens: [107, 115, 2], version: 3 })
  const orphan = call(tree, HEAD, turn('b'), { tokens: [108, 2] })
  tree.markOrphan(orphan.callId)
  const { trajectories, leaves } = admit(tree, { jMax: 5, rng: seededRng(1) })
  expect(printTree(tree, leaves, { decode, trajectories, previewLength: 20 })).toBe(`\
execution x1: 2 calls, 5 nodes, 71 tokens
#1 system 35 tok  "{"kind":"system",..."
#2 user 30 tok  "{"kind":"user","t..."
#3 prompt 1 tok
  #4 policy 3 tok  main  v3  loss 3/3  "ai"  [picked, 3 trained]
  #5 policy 2 tok  main  v0  orphan  loss 0/2  "b"  [orphan: its answer was never used, 0 trained]
`)
})
