/**
 * @file Recorded sessions, trained as trees and as flat rows: compaction, sub-agents, and branches that a token
 * budget cuts apart. The shape of the trees is the recorded one; every node is shortened, so that an engine in a
 * test can afford the flat rows.
 */
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createEmbeddedEngine, type EmbeddedEngine } from '../src/adapters/engine/embedded/embedded-engine.ts'
import { replayRecording } from '../src/cli/compose/replay-session.ts'
import { seededRng } from '../src/core/rng.ts'
import { byteChatCodec } from '../src/recording/byte-chat-codec.ts'
import { readRecording } from '../src/recording/files.ts'
import type { Objective } from '../src/training/batch.ts'
import type { PackedMicroStep, PackExecution, PackSequence } from '../src/training/forest.ts'
import { gradientOf } from '../src/training/gradient-sums.ts'
import { packFlat, packMicroSteps } from '../src/training/pack.ts'
import { admit, type Trajectory } from '../src/trajectory/admission.ts'
import type { TreeNode } from '../src/trajectory/node.ts'
import { SHAPE } from './support/embedded-engines.ts'

const OBJECTIVE: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.2,
  clipHigh: 0.28,
  ratioBound: 4,
  entropyWeight: 0.01,
}
/** Longest stretch of one node. [tokens] */
const NODE_TOKENS = 7
const MAX_TOKENS = 1024

let engine: EmbeddedEngine
beforeAll(async () => {
  engine = await createEmbeddedEngine({ model: SHAPE, slots: 1, maxContext: 1024, maxTrainTokens: MAX_TOKENS, seed: 3 })
})
afterAll(() => engine.close())

const lengthOf = (node: TreeNode): number => Math.min(NODE_TOKENS, node.tokenIds.length)

/** The path with every node shortened. Ids depend on node and place, so paths part where they parted. */
function shortened(trajectory: Trajectory, seed: number): PackSequence {
  const tokenIds: number[] = []
  const targetMask: number[] = []
  const behaviorLogprobs: number[] = []
  let at = 0
  for (const [depth, node] of trajectory.nodes.entries()) {
    const rng = seededRng(node.id * 31 + (depth === 0 ? 0 : seed))
    for (let i = 0; i < lengthOf(node); i++) {
      tokenIds.push(rng.below(SHAPE.vocabSize))
      targetMask.push(trajectory.lossMask[at + i] ?? 0)
      // Near log(1 / V), so that ratios lie on both sides of the clip and some beyond the bound.
      behaviorLogprobs.push(-4 + rng.next() * 2.4 - 1.2)
    }
    at += node.tokenIds.length
  }
  return {
    tokenIds: Int32Array.from(tokenIds),
    targetMask: Uint8Array.from(targetMask),
    behaviorLogprobs: Float32Array.from(behaviorLogprobs),
    policyVersions: new Int32Array(tokenIds.length),
  }
}

/** A group of three executions that begin alike, as their first node is the same. */
async function groupOf(name: string): Promise<readonly PackExecution[]> {
  const recording = readRecording(join(import.meta.dirname, 'golden', name))
  const { tree } = await replayRecording(recording, { codec: byteChatCodec(), isOwnTokenizer: true })
  const { trajectories } = admit(tree, { jMax: Infinity, rng: seededRng(1) })
  return [1.3, -0.4, -0.9].map((advantage, member) => ({
    key: `${name}#${member}`,
    advantage,
    tokenWeight: (member + 1) / 2000,
    sequences: trajectories.map((trajectory) => shortened(trajectory, member + 1)),
  }))
}

interface Trained {
  readonly gradient: Float32Array
  readonly logprobs: readonly number[]
  readonly loss: number
  readonly clipped: number
  readonly masked: number
}

async function train(steps: readonly PackedMicroStep[]): Promise<Trained> {
  await engine.zeroGradients()
  const logprobs: number[] = []
  let [loss, clipped, masked] = [0, 0, 0]
  for (const { batch } of steps) {
    const result = await engine.forwardBackward(batch, OBJECTIVE)
    logprobs.push(...result.logprobs)
    loss += result.loss
    clipped += result.clippedTokens
    masked += result.maskedTokens
  }
  const gradient = gradientOf(await engine.exportGradients())
  return { gradient, logprobs: logprobs.toSorted((a, b) => a - b), loss, clipped, masked }
}

const rowsOf = (steps: readonly PackedMicroStep[]): number =>
  steps.reduce((n, { batch }) => n + batch.tokenIds.length, 0)

test.each([
  'claude-code-2.1.332-sub-agent-compaction',
  'gemini-cli-0.61.0-compaction',
  'codex-0.171.0-compaction',
  'opencode-1.18.33-sub-agents',
])('%s: tree and flat give the gradient to 1e-5 and the same log-prob bits, however the tree is cut', async (name) => {
  const executions = await groupOf(name)
  const longest = Math.max(...executions.flatMap(({ sequences }) => sequences.map((s) => s.tokenIds.length)))
  const flatSteps = packFlat(executions, { maxTokens: MAX_TOKENS })
  const flat = await train(flatSteps)
  expect(Math.min(flat.clipped, flat.masked)).toBeGreaterThan(0)
  const scale = flat.gradient.reduce((a, g) => Math.max(a, Math.abs(g)), 0)

  const whole = packMicroSteps(executions, { maxTokens: MAX_TOKENS, mergePrefix: true })
  const cut = packMicroSteps(executions, { maxTokens: longest + 2, mergePrefix: true })
  expect(rowsOf(whole)).toBeLessThan(rowsOf(flatSteps))
  // A branch that is cut off brings its ancestors along.
  expect(cut.length).toBeGreaterThan(whole.length)
  expect(rowsOf(cut)).toBeGreaterThan(rowsOf(whole))
  expect(rowsOf(cut)).toBeLessThanOrEqual(rowsOf(flatSteps))
  for (const steps of [whole, cut]) {
    const trained = await train(steps)
    const worst = trained.gradient.reduce((a, g, i) => Math.max(a, Math.abs(g - (flat.gradient[i] ?? NaN))), 0)
    expect(worst / scale).toBeLessThan(1e-5)
    expect(trained.logprobs).toEqual(flat.logprobs)
    expect([trained.clipped, trained.masked]).toEqual([flat.clipped, flat.masked])
    expect(Math.abs(trained.loss - flat.loss)).toBeLessThan(1e-6)
  }
})
