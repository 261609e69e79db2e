import fc from 'fast-check'
import { expect, test } from 'vitest'
import { runSession, sessionSteps } from '../../test/support/sessions.ts'
import { EXECUTION, call, newTree, system, tools, turn, user } from '../../test/support/trees.ts'
import type { Item } from '../core/items.ts'
import { type ExecutionTree, ExecutionTree as Tree } from './tree.ts'

const paths = (tree: ExecutionTree): ReadonlySet<string> =>
  new Set(tree.leaves().map((leaf) => tree.pathTokenIds(leaf).join()))

test('the path of a call is exactly what the policy read and said', () => {
  fc.assert(
    fc.property(sessionSteps, (steps) => {
      const { tree, records, contexts } = runSession(steps)
      records.forEach((record, i) => {
        const leaf = record.nodes.at(-1)?.id ?? -1
        expect([...tree.pathTokenIds(leaf)]).toEqual(contexts[i])
        expect(tree.pathNodes(leaf).flatMap((node) => [...node.tokenIds])).toEqual(contexts[i])
        expect(tree.pathLength(leaf)).toBe(contexts[i]?.length)
      })
    }),
  )
})

test('no harness block is held twice under one parent', () => {
  fc.assert(
    fc.property(sessionSteps, (steps) => {
      const { tree } = runSession(steps)
      for (const node of tree.nodes()) {
        const blocks = tree
          .childrenOf(node.id)
          .map((id) => tree.node(id))
          .filter((n) => n?.provenance === 'harness')
        expect(new Set(blocks.map((n) => n?.tokenIds.join())).size).toBe(blocks.length)
      }
    }),
  )
})

test('its records rebuild the tree bit for bit', () => {
  fc.assert(
    fc.property(sessionSteps, (steps) => {
      const { tree, records } = runSession(steps)
      const rebuilt = Tree.fromRecords(EXECUTION, records)
      expect(rebuilt.nodes()).toEqual(tree.nodes())
      expect(rebuilt.calls()).toEqual(tree.calls())
      expect(rebuilt.leaves()).toEqual(tree.leaves())
    }),
  )
})

test('the order of concurrent commits does not change the set of paths', () => {
  const threads = fc.array(fc.array(fc.nat(2), { minLength: 1, maxLength: 4 }), { minLength: 1, maxLength: 4 })
  fc.assert(
    fc.property(threads, fc.array(fc.nat(7), { maxLength: 20 }), (words, order) => {
      const run = (schedule: readonly number[]): ExecutionTree => {
        const tree = newTree()
        const histories: Item[][] = words.map(() => [tools('bash'), system('Agent.')])
        const at = words.map(() => 0)
        const step = (thread: number): void => {
          const word = words[thread]?.[at[thread] ?? 0]
          if (word === undefined) return
          const history = histories[thread] ?? []
          history.push(user(`say ${word}`))
          const reply = turn(`${thread}.${at[thread]}`)
          call(tree, history, reply, { id: `${thread}.${at[thread]}` })
          history.push(reply)
          at[thread] = (at[thread] ?? 0) + 1
        }
        for (const turnOf of schedule) step(turnOf % words.length)
        words.forEach((list, thread) => list.forEach(() => step(thread)))
        return tree
      }
      const one = run(order)
      const other = run([])
      expect(paths(one)).toEqual(paths(other))
      expect(one.tokenCount).toBe(other.tokenCount)
    }),
  )
})

test('400 calls of a growing history are one path, each token held once', () => {
  const tree = newTree()
  const history: Item[] = [tools('bash'), system('Agent.'), user('Go.')]
  for (let n = 0; n < 400; n++) {
    const reply = turn(`step ${n}`)
    call(tree, history, reply)
    history.push(reply, user(`observation ${n}`))
  }
  expect(tree.match(history.slice(0, -1)).matchedItems).toBe(history.length - 1)
  expect(tree.tokenCount).toBe(tree.pathLength(tree.leaves()[0] ?? -1))
})
