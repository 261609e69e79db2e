import fc from 'fast-check'
import { expect, test } from 'vitest'
import { runSession, sessionSteps } from '../../test/support/sessions.ts'
import { call, newTree, system, turn, user } from '../../test/support/trees.ts'
import { executionId, groupId } from '../core/ids.ts'
import type { Item } from '../core/items.ts'
import { seededRng } from '../core/rng.ts'
import { admit } from '../trajectory/admission.ts'
import { ExecutionTree } from '../trajectory/tree.ts'
import type { ForwardBackwardResult } from './batch.ts'
import { packFlat, packMicroSteps } from './pack.ts'
import { StepStats } from './stats.ts'
import { type StepGroup, type StepMember, trainingStep } from './step.ts'

const HEAD: readonly Item[] = [system('Agent.'), user('Go.')]

/** An execution that grew by `turns` calls, read back from its records. */
function grown(id: string, turns: number, reward: number): StepMember {
  const source = newTree(executionId(id))
  const history = [...HEAD]
  const records = Array.from({ length: turns }, (_, n) => {
    const reply = turn(`${id} says ${n}`)
    const record = call(source, history, reply, { version: n })
    history.push(reply, user('more'))
    return record
  })
  const tree = ExecutionTree.fromRecords(executionId(id), records)
  return {
    executionId: executionId(id),
    reward,
    trajectories: admit(tree, { jMax: 5, rng: seededRng(1) }).trajectories,
  }
}

/** Two executions of one query: the first one turn, the second three. */
const group = (): StepGroup => ({ groupId: groupId('g'), members: [grown('x1', 1, 1), grown('x2', 3, 0)] })

test('from records to a micro-batch: executions weigh the same, whatever their length', () => {
  const step = trainingStep([group()], 'dr-grpo')
  const [micro] = packMicroSteps(step.executions, { maxTokens: 10_000, mergePrefix: true })
  const weights = [0, 0]
  micro?.targetExecutions.forEach((x, r) => (weights[x] = (weights[x] ?? 0) + (micro.batch.targetWeights[r] ?? 0)))
  expect(weights[0]).toBeCloseTo(0.5, 5)
  expect(weights[1]).toBeCloseTo(0.5, 5)
  expect(new Set(micro?.batch.targetAdvantages)).toEqual(new Set([0.5, -0.5]))
  expect(micro?.batch.targetIds.length).toBe(step.trainableTokens)
})

test('groups that teach nothing are counted and left out', () => {
  const taught = group()
  const one = { groupId: groupId('h'), members: taught.members.slice(0, 1) }
  const flat = { groupId: groupId('i'), members: taught.members.map((m) => ({ ...m, reward: 1 })) }
  const step = trainingStep([one, flat], 'grpo')
  expect([step.executions.length, step.tooFewScored, step.zeroVariance]).toEqual([0, 1, 1])
})

test('rows of a packed tree are the distinct tokens of what was admitted: 1.00, where 1.05 is allowed', () => {
  fc.assert(
    fc.property(sessionSteps, (steps) => {
      const { tree } = runSession(steps)
      const { trajectories } = admit(tree, { jMax: Infinity, rng: seededRng(1) })
      const distinct = new Map(trajectories.flatMap((t) => t.nodes.map((n) => [n.id, n.tokenIds.length] as const)))
      const tokens = [...distinct.values()].reduce((a, b) => a + b, 0)
      const other = { executionId: executionId('other'), reward: 0, trajectories: [] }
      const member = { executionId: tree.executionId, reward: 1, trajectories }
      const { executions } = trainingStep([{ groupId: groupId('g'), members: [member, other] }], 'rloo')
      const packed = packMicroSteps(executions, { maxTokens: 1e9, mergePrefix: true })
      const rows = packed.reduce((sum, p) => sum + p.batch.tokenIds.length, 0)
      expect(rows).toBeLessThanOrEqual(tokens)
      const weight = packed.reduce((sum, p) => sum + p.batch.targetWeights.reduce((a, b) => a + b, 0), 0)
      expect(weight).toBeCloseTo(trajectories.length === 0 ? 0 : 1, 4)
      expect(packFlat(executions, { maxTokens: 1e9 })[0]?.batch.targetIds.length).toBe(
        packed[0]?.batch.targetIds.length,
      )
    }),
  )
})

test('step metrics: staleness, ratios, k3, fractions, and a repeated micro-step counts once', () => {
  const step = trainingStep([group()], 'grpo')
  const micro = packMicroSteps(step.executions, { maxTokens: 10_000, mergePrefix: true, minMicroSteps: 2 })
  const stats = new StepStats(2)
  const resultOf = (i: number, shift: number): ForwardBackwardResult => ({
    loss: 0.5,
    entropy: 0.25,
    logprobs: (micro[i]?.batch.targetBehaviorLogprobs ?? new Float32Array(0)).map((logprob) => logprob + shift),
    clippedTokens: 3,
    maskedTokens: 0,
  })
  const [first, second] = micro
  if (first === undefined || second === undefined) throw new Error('two micro-steps were asked for')
  stats.add(0, first, resultOf(0, 5))
  stats.add(0, first, resultOf(0, Math.log(2)))
  stats.add(1, second, resultOf(1, Math.log(2)))
  const metrics = stats.metrics()
  expect(metrics['off_policy/mean_ratio']).toBeCloseTo(2, 4)
  expect(metrics['off_policy/approx_kl']).toBeCloseTo(1 - Math.log(2), 4)
  expect(metrics['off_policy/max_staleness']).toBe(2)
  expect(metrics['off_policy/clip_fraction']).toBeCloseTo(6 / step.trainableTokens, 9)
  expect(metrics['train/loss']).toBe(1)
  expect(metrics['batch/micro_steps']).toBe(2)
  expect(metrics['batch/executions']).toBe(2)
})
