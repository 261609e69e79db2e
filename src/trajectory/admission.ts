/**
 * @file Which paths of an execution are trained: bounded, deduplicated, highest role first.
 *
 * From the highest role that still has unmasked policy tokens, pick a leaf with probability proportional
 * to them; train its path where it is unmasked; mask the path; go on until nothing is left or the budget
 * is out. Source: the sampling rule of QwenGyre, arXiv 2609.33848.
 */
import type { ExecutionId } from '../core/ids.ts'
import type { Rng } from '../core/rng.ts'
import type { LeafRole, NodeId, PolicyNode, TreeNode } from './node.ts'
import { type LeafFate, ROLE_PRIORITY } from './roles.ts'
import { type ExecutionTree, ROOT } from './tree.ts'

export interface AdmissionOptions {
  /** Most trajectories of one execution; Infinity for no bound. */
  readonly jMax: number
  readonly rng: Rng
  /** Paths longer than this are not trained. [tokens] */
  readonly maxTokens?: number
  /** Train title, quota and memory calls too. Default false. */
  readonly trainSide?: boolean
}

/** One admitted root-to-leaf path. */
export interface Trajectory {
  readonly executionId: ExecutionId
  readonly leaf: NodeId
  readonly role: LeafRole
  /** From the first node under the root to the leaf. */
  readonly nodes: readonly TreeNode[]
  /** [T] 1 where the token carries loss in this trajectory. T is the sum of the nodes' tokens. */
  readonly lossMask: Uint8Array
  /** Ones in the mask. [tokens] */
  readonly trainedTokens: number
}

/** The row kept for every leaf. */
export interface LeafReport {
  readonly executionId: ExecutionId
  readonly leaf: NodeId
  readonly role: LeafRole
  readonly fate: LeafFate
  /** Policy tokens on its path. [tokens] */
  readonly policyTokens: number
  /** Tokens that carry loss through it. [tokens] */
  readonly trainedTokens: number
}

export interface Admission {
  /** In the order they were picked. */
  readonly trajectories: readonly Trajectory[]
  /** By leaf, ascending. */
  readonly leaves: readonly LeafReport[]
}

/** A token without a log-prob has no evidence for its ratio. */
function hasEvidence(logprob: number): boolean {
  return Number.isFinite(logprob)
}

function evidence(node: PolicyNode): number {
  return node.behaviorLogprobs.reduce((sum, logprob) => sum + (hasEvidence(logprob) ? 1 : 0), 0)
}

/** Token counts per node, for one admission. */
class Ledger {
  readonly #tree: ExecutionTree
  readonly #trainSide: boolean
  /** Trainable tokens each node still has. [tokens] */
  readonly #open: number[]
  /** Nodes whose loss was given out. */
  readonly #masked = new Set<NodeId>()
  /** Nodes with a trainable generated node below them. */
  readonly #inner = new Set<NodeId>()

  constructor(tree: ExecutionTree, trainSide: boolean) {
    this.#tree = tree
    this.#trainSide = trainSide
    this.#open = tree.nodes().map((node) => (this.#trainable(node) ? evidence(node) : 0))
    for (const node of tree.nodes().toReversed()) {
      if (this.#trainable(node) || this.#inner.has(node.id)) this.#inner.add(node.parent)
    }
  }

  role(id: NodeId): LeafRole {
    return this.#tree.callOfNode(id)?.role ?? 'main'
  }

  #trainable(node: TreeNode): node is PolicyNode {
    if (node.provenance !== 'policy' || node.status !== 'committed') return false
    return this.#trainSide || this.role(node.id) !== 'side'
  }

  /** The last trainable turn of each branch. Aborted, orphan and side turns after it do not count. */
  candidates(): readonly NodeId[] {
    return this.#tree.nodes().flatMap((node) => (this.#trainable(node) && !this.#inner.has(node.id) ? [node.id] : []))
  }

  /** Trainable tokens on the path of every node that no trajectory trains yet. [nodes] */
  openOnPath(): readonly number[] {
    const sums: number[] = []
    for (const node of this.#tree.nodes()) {
      sums.push((node.id === ROOT ? 0 : (sums[node.parent] ?? 0)) + (this.#open[node.id] ?? 0))
    }
    return sums
  }

  /** Policy tokens on the path of every node. [nodes] */
  policyOnPath(): readonly number[] {
    const sums: number[] = []
    for (const node of this.#tree.nodes()) {
      const own = node.provenance === 'policy' ? node.tokenIds.length : 0
      sums.push((node.id === ROOT ? 0 : (sums[node.parent] ?? 0)) + own)
    }
    return sums
  }

  /** Gives out the loss of a path and masks it. */
  take(leaf: NodeId): Trajectory {
    const nodes = this.#tree.pathNodes(leaf)
    const lossMask = new Uint8Array(this.#tree.pathLength(leaf))
    let trainedTokens = 0
    let end = 0
    for (const node of nodes) {
      const start = end
      end += node.tokenIds.length
      if (!this.#trainable(node) || this.#masked.has(node.id)) continue
      node.behaviorLogprobs.forEach((logprob, i) => {
        if (hasEvidence(logprob)) lossMask[start + i] = 1
      })
      trainedTokens += this.#open[node.id] ?? 0
      this.#open[node.id] = 0
      this.#masked.add(node.id)
    }
    return { executionId: this.#tree.executionId, leaf, role: this.role(leaf), nodes, lossMask, trainedTokens }
  }
}

/** An index with probability proportional to its weight. Weights are whole numbers with a positive sum. */
function draw(weights: readonly number[], rng: Rng): number {
  let ticket = Math.floor(rng.next() * weights.reduce((sum, weight) => sum + weight, 0))
  return weights.findIndex((weight) => {
    ticket -= weight
    return ticket < 0
  })
}

function pick(ledger: Ledger, candidates: readonly NodeId[], rng: Rng): NodeId | undefined {
  const open = ledger.openOnPath()
  const left = candidates.filter((id) => (open[id] ?? 0) > 0)
  const role = ROLE_PRIORITY.find((r) => left.some((id) => ledger.role(id) === r))
  const ofRole = left.filter((id) => ledger.role(id) === role)
  if (ofRole.length === 0) return undefined
  return ofRole[
    draw(
      ofRole.map((id) => open[id] ?? 0),
      rng,
    )
  ]
}

/**
 * Chooses the trajectories of one execution. Every trainable token is in the mask of at most one of them;
 * with `jMax` unbounded, in exactly one. The same tree and rng state give the same result.
 */
export function admit(tree: ExecutionTree, options: AdmissionOptions): Admission {
  const { jMax, rng, maxTokens = Infinity, trainSide = false } = options
  const ledger = new Ledger(tree, trainSide)
  const all = ledger.candidates()
  const fitting = all.filter((id) => tree.pathLength(id) <= maxTokens)
  const trajectories: Trajectory[] = []
  while (trajectories.length < jMax) {
    const leaf = pick(ledger, fitting, rng)
    if (leaf === undefined) break
    trajectories.push(ledger.take(leaf))
  }

  const trained = new Map(trajectories.map((t) => [t.leaf, t.trainedTokens]))
  const open = ledger.openOnPath()
  const policy = ledger.policyOnPath()
  const candidates = new Set(all)
  const fateOf = (id: NodeId): LeafFate => {
    if (trained.has(id)) return 'picked'
    if (candidates.has(id)) {
      if (tree.pathLength(id) > maxTokens) return 'too-long'
      return (open[id] ?? 0) > 0 ? 'over-budget' : 'masked'
    }
    const node = tree.node(id)
    if (node?.provenance === 'policy' && node.status !== 'committed') return node.status
    return 'side'
  }
  const ids = [...new Set([...tree.leaves(), ...all])].sort((a, b) => a - b)
  const leaves = ids.map((leaf) => ({
    executionId: tree.executionId,
    leaf,
    role: ledger.role(leaf),
    fate: fateOf(leaf),
    policyTokens: policy[leaf] ?? 0,
    trainedTokens: trained.get(leaf) ?? 0,
  }))
  return { trajectories, leaves }
}
