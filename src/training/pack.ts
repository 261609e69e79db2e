/** @file Cuts a training step into micro-steps whose shared prefixes are computed once. */
import { invariant } from '../core/errors.ts'
import type { Trajectory } from '../trajectory/admission.ts'
import {
  Forest,
  type ForestEntry,
  type PackExecution,
  type PackSequence,
  type PackedMicroStep,
  countTargets,
} from './forest.ts'

export interface PackOptions {
  /** Rows of one micro-step, the memory budget of a cell. [tokens] */
  readonly maxTokens: number
  /** Share prefixes within and between executions. */
  readonly mergePrefix: boolean
  /** At least this many micro-steps when there are targets enough, so that every cell finds work. Default 1. */
  readonly minMicroSteps?: number
  /** Work of attending to one earlier token, relative to the dense work of one row. */
  readonly contextCost?: number
}

/** About 1 / (6 x hidden size), the ratio of attention to dense work of a transformer of hidden size 256. */
const DEFAULT_CONTEXT_COST = 1 / 1536

/** An admitted trajectory as a path to pack. */
export function trajectorySequence(trajectory: Trajectory): PackSequence {
  const length = trajectory.lossMask.length
  const tokenIds = new Int32Array(length)
  const behaviorLogprobs = new Float32Array(length)
  const policyVersions = new Int32Array(length)
  let at = 0
  for (const node of trajectory.nodes) {
    tokenIds.set(node.tokenIds, at)
    if (node.provenance === 'policy') {
      behaviorLogprobs.set(node.behaviorLogprobs, at)
      policyVersions.set(node.policyVersions, at)
    }
    at += node.tokenIds.length
  }
  invariant(at === length, `the mask of leaf ${trajectory.leaf} is as long as its path`)
  return { tokenIds, targetMask: trajectory.lossMask, behaviorLogprobs, policyVersions }
}

/** One demonstration for cross-entropy. `weight` is the share of the step's loss of each of its targets. */
export function demonstration(
  key: string,
  example: { readonly tokenIds: Int32Array; readonly targetMask: Uint8Array; readonly weight: number },
): PackExecution {
  const { tokenIds, targetMask, weight } = example
  return { key, advantage: 1, tokenWeight: weight, sequences: [{ tokenIds, targetMask }] }
}

function entriesOf(execution: PackExecution): readonly ForestEntry[] {
  return execution.sequences
    .filter((sequence) => countTargets(sequence) > 0)
    .map((sequence) => {
      invariant(
        sequence.targetMask.length === sequence.tokenIds.length,
        `each token of ${execution.key} has a mask bit`,
      )
      invariant(sequence.targetMask[0] === 0, `the first token of ${execution.key} is no target`)
      return { execution, sequence }
    })
}

/**
 * Packs executions into micro-steps of at most `maxTokens` rows. The paths of all of them are one trie, which is
 * divided so that few rows stand in more than one micro-step; each has its own copy of the ancestor prefixes. A single
 * path longer than the budget makes a micro-step of its own, since its tokens need their whole context; refuse
 * such paths at admission. Every target comes out once. The most expensive micro-step is first, so that cells which
 * claim them in order finish close together.
 */
export function packMicroSteps(executions: readonly PackExecution[], options: PackOptions): readonly PackedMicroStep[] {
  const { maxTokens, mergePrefix, minMicroSteps = 1, contextCost = DEFAULT_CONTEXT_COST } = options
  return Forest.of(executions.flatMap(entriesOf), mergePrefix)
    .parts(maxTokens, minMicroSteps)
    .map((part) => part.emit(contextCost))
    .sort((a, b) => b.cost - a.cost)
}

/** The same targets without any sharing: one row of the batch per token of every path. */
export function packFlat(
  executions: readonly PackExecution[],
  options: Omit<PackOptions, 'mergePrefix'>,
): readonly PackedMicroStep[] {
  return packMicroSteps(executions, { ...options, mergePrefix: false })
}
