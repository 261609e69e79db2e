/** @file What a session is worth: how many tokens it sampled, how many can be trained, and at what cost. */
import { seededRng } from '../core/rng.ts'
import { admit } from '../trajectory/admission.ts'
import type { Admission } from '../trajectory/admission.ts'
import type { LeafRole, PolicyNode } from '../trajectory/node.ts'
import type { LeafFate } from '../trajectory/roles.ts'
import type { ExecutionTree } from '../trajectory/tree.ts'

export interface ReplayFigures {
  /** Model calls that left a record: retries of one question are one call. */
  readonly calls: number
  /** Sampled in branches that survive: not in orphans, not in calls whose client hung up. [tokens] */
  readonly sampledTokens: number
  /** Those of them that carry loss once every branch is admitted, side calls included. [tokens] */
  readonly trainableTokens: number
  /** Calls whose engine saw another context than the request describes. */
  readonly wrongContexts: number
  /** What a trainer of trees gets: every node on an admitted path, once. [tokens] */
  readonly emittedTokens: number
  /** What a trainer of rows gets: every admitted path whole. [tokens] */
  readonly flatTokens: number
  /** Tokens of the tree, each distinct prefix once. [tokens] */
  readonly distinctTokens: number
  readonly orphans: number
  /** Leaves by role, then by fate. */
  readonly leaves: Readonly<Partial<Record<LeafRole, Readonly<Partial<Record<LeafFate, number>>>>>>
}

export interface FigureOptions {
  /** Most trajectories of the execution; Infinity for no bound. */
  readonly jMax: number
  readonly seed: number
}

export function figuresOf(tree: ExecutionTree, wrongContexts: number, options: FigureOptions): ReplayFigures {
  const admission = admit(tree, { jMax: options.jMax, rng: seededRng(options.seed) })
  const turns = tree.nodes().filter((node): node is PolicyNode => node.provenance === 'policy')
  const surviving = turns.filter((node) => node.status === 'committed')
  const everything = admit(tree, { jMax: Infinity, rng: seededRng(options.seed), trainSide: true })
  const emitted = new Map(admission.trajectories.flatMap(({ nodes }) => nodes.map((node) => [node.id, node])))
  return {
    calls: tree.calls().length,
    sampledTokens: sum(surviving.map((node) => node.tokenIds.length)),
    trainableTokens: sum(everything.trajectories.map(({ trainedTokens }) => trainedTokens)),
    wrongContexts,
    emittedTokens: sum([...emitted.values()].map((node) => node.tokenIds.length)),
    flatTokens: sum(admission.trajectories.map(({ lossMask }) => lossMask.length)),
    distinctTokens: tree.tokenCount,
    orphans: turns.filter((node) => node.status === 'orphan').length,
    leaves: leavesOf(admission),
  }
}

/** What the goals ask for and these figures miss; empty when all is well. */
export function missedGoals(figures: ReplayFigures): readonly string[] {
  const { sampledTokens, trainableTokens, wrongContexts, emittedTokens, distinctTokens } = figures
  const missed: string[] = []
  if (trainableTokens !== sampledTokens)
    missed.push(`${trainableTokens} of ${sampledTokens} sampled tokens are trainable`)
  if (wrongContexts > 0) missed.push(`${wrongContexts} calls were sampled on a wrong context`)
  if (emittedTokens > 1.05 * distinctTokens) {
    missed.push(`${emittedTokens} tokens are emitted for ${distinctTokens} distinct ones`)
  }
  return missed
}

function leavesOf({ leaves }: Admission): ReplayFigures['leaves'] {
  const counts: Partial<Record<LeafRole, Partial<Record<LeafFate, number>>>> = {}
  for (const { role, fate } of leaves) {
    const ofRole = (counts[role] ??= {})
    ofRole[fate] = (ofRole[fate] ?? 0) + 1
  }
  return counts
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}
