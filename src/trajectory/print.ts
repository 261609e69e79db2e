/** @file The tree of an execution as text, for `gyre tree`. */
import type { LeafReport, Trajectory } from './admission.ts'
import type { NodeId, TreeNode } from './node.ts'
import { type ExecutionTree, ROOT } from './tree.ts'

export interface PrintOptions {
  /** Text of token ids; without it nodes show their items only. */
  readonly decode?: (tokenIds: Int32Array) => string
  /** Longest preview. [characters] */
  readonly previewLength?: number
  /** When given, generated nodes show whether they carry loss. */
  readonly trajectories?: readonly Trajectory[]
}

const FATES: Readonly<Record<LeafReport['fate'], string>> = {
  picked: 'picked',
  masked: 'masked: all its tokens are trained elsewhere or have no log-prob',
  'over-budget': 'over budget: enough trajectories of this execution were picked',
  side: 'side call: not trained',
  orphan: 'orphan: its answer was never used',
  aborted: 'aborted: the client hung up',
  'too-long': 'too long to train',
  'no-gradient': 'no gradient: its group teaches nothing',
}

/** Trained tokens by node. */
function lossByNode(trajectories: readonly Trajectory[]): ReadonlyMap<NodeId, number> {
  const loss = new Map<NodeId, number>()
  for (const { nodes, lossMask } of trajectories) {
    let at = 0
    for (const node of nodes) {
      const own = lossMask.subarray(at, at + node.tokenIds.length).reduce((sum, bit) => sum + bit, 0)
      loss.set(node.id, (loss.get(node.id) ?? 0) + own)
      at += node.tokenIds.length
    }
  }
  return loss
}

function previewOf(node: TreeNode, options: PrintOptions): string {
  const text = options.decode?.(node.tokenIds) ?? ''
  const limit = options.previewLength ?? 60
  const flat = text.replace(/\s+/g, ' ').trim()
  if (flat === '') return ''
  return `  "${flat.length > limit ? `${flat.slice(0, limit - 3)}...` : flat}"`
}

function nameOf(node: TreeNode): string {
  if (node.provenance === 'policy') return 'policy'
  return node.items.length === 0 ? 'prompt' : [...new Set(node.items.map((item) => item.kind))].join('+')
}

/** One line a node, children indented only where the tree branches. */
export function printTree(tree: ExecutionTree, leaves: readonly LeafReport[], options: PrintOptions = {}): string {
  const reports = new Map(leaves.map((leaf) => [leaf.leaf, leaf]))
  const loss = options.trajectories === undefined ? undefined : lossByNode(options.trajectories)
  const describe = (node: TreeNode): string => {
    const parts = [`#${node.id} ${nameOf(node)} ${node.tokenIds.length} tok`]
    if (node.provenance === 'policy') {
      const role = tree.callOfNode(node.id)?.role
      if (role !== undefined) parts.push(role)
      const from = node.policyVersions[0]
      const to = node.policyVersions.at(-1)
      if (from !== undefined) parts.push(from === to ? `v${from}` : `v${from}..v${to}`)
      if (node.status !== 'committed') parts.push(node.status)
      if (loss !== undefined) parts.push(`loss ${loss.get(node.id) ?? 0}/${node.tokenIds.length}`)
    }
    const report = reports.get(node.id)
    const end = report === undefined ? '' : `  [${FATES[report.fate]}, ${report.trainedTokens} trained]`
    return parts.join('  ') + previewOf(node, options) + end
  }
  const lines = [
    `execution ${tree.executionId}: ${tree.nextSequence} calls, ${tree.nextNodeId - 1} nodes, ${tree.tokenCount} tokens`,
  ]
  const open: { readonly id: NodeId; readonly depth: number }[] = [{ id: ROOT, depth: 0 }]
  for (let here = open.pop(); here !== undefined; here = open.pop()) {
    const node = tree.node(here.id)
    if (node !== undefined && node.id !== ROOT) lines.push('  '.repeat(here.depth) + describe(node))
    const children = tree.childrenOf(here.id)
    const depth = here.depth + (children.length > 1 ? 1 : 0)
    for (const id of children.toReversed()) open.push({ id, depth })
  }
  return `${lines.join('\n')}\n`
}
