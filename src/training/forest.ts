/**
 * @file Root-to-leaf paths merged into one depth-first forest.
 *
 * Sorted by their token ids, paths stand in depth-first order of their trie, and each shares with the one
 * before it exactly the rows it does not have to add. A row is shared by token ids alone: the same ids from
 * the root are the same computation, whoever produced them.
 */
import { invariant } from '../core/errors.ts'
import type { MicroBatch } from './batch.ts'
import { divide, rowsOf, sharedWithin, type TriePaths } from './partition.ts'

/** One root-to-leaf path. */
export interface PackSequence {
  /** [T] */
  readonly tokenIds: Int32Array
  /** [T] 1 where the token carries loss. Never at 0: the first token has no predecessor to predict it. */
  readonly targetMask: Uint8Array
  /** [T] nats, read where the mask is set; absent for demonstrations. */
  readonly behaviorLogprobs?: Float32Array
  /** [T] policy version that sampled the token, read where the mask is set. */
  readonly policyVersions?: Int32Array
}

/** The paths of one execution, and what every target on them carries. */
export interface PackExecution {
  readonly key: string
  readonly advantage: number
  /** Share of the step's loss of each target. */
  readonly tokenWeight: number
  readonly sequences: readonly PackSequence[]
}

export interface ForestEntry {
  readonly execution: PackExecution
  readonly sequence: PackSequence
}

/** A micro-batch with what the control process keeps about it. */
export interface PackedMicroStep {
  readonly batch: MicroBatch
  /** Keys of the executions that have targets here. */
  readonly executions: readonly string[]
  /** [R] index into `executions`. */
  readonly targetExecutions: Int32Array
  /** [R] version that sampled each target; -1 for demonstrations. */
  readonly targetPolicyVersions: Int32Array
  /** Rows the same targets would take without sharing. [tokens] */
  readonly flatTokens: number
  /** Relative work of a forward and backward pass, in dense rows. */
  readonly cost: number
}

function commonPrefix(a: Int32Array, b: Int32Array): number {
  const end = Math.min(a.length, b.length)
  let at = 0
  while (at < end && a[at] === b[at]) at++
  return at
}

/** Depth-first order: by the first id that differs, a prefix before what it begins. */
function byIds(a: Int32Array, b: Int32Array): number {
  const at = commonPrefix(a, b)
  return (a[at] ?? -1) - (b[at] ?? -1)
}

/** Paths in depth-first order of their trie. */
export class Forest {
  readonly #entries: readonly ForestEntry[]
  readonly #paths: TriePaths

  private constructor(entries: readonly ForestEntry[], shared: readonly number[]) {
    this.#entries = entries
    this.#paths = { lengths: entries.map(({ sequence }) => sequence.tokenIds.length), shared }
  }

  /** @param merge false keeps every path a tree of its own, in the order given. */
  static of(entries: readonly ForestEntry[], merge: boolean): Forest {
    if (!merge) {
      return new Forest(
        entries,
        entries.map(() => 0),
      )
    }
    const sorted = entries.toSorted((a, b) => byIds(a.sequence.tokenIds, b.sequence.tokenIds))
    const shared = sorted.map(({ sequence }, i) => {
      const previous = sorted[i - 1]
      return previous === undefined ? 0 : commonPrefix(previous.sequence.tokenIds, sequence.tokenIds)
    })
    return new Forest(sorted, shared)
  }

  /** Forests of at most `budget` rows that hold every path once, as `divide` finds them. */
  parts(budget: number, wanted: number): readonly Forest[] {
    return divide(this.#paths, budget, wanted).map((part) => {
      const entries = part.flatMap((path) => this.#entries[path] ?? [])
      return new Forest(entries, sharedWithin(this.#paths, part))
    })
  }

  /** @param contextCost work of attending to one earlier token, relative to the dense work of one row. */
  emit(contextCost: number): PackedMicroStep {
    return new Emitter(this.#entries, this.#paths).run(contextCost)
  }
}

interface TargetColumns {
  readonly targetRows: Int32Array
  readonly targetIds: Int32Array
  readonly targetWeights: Float32Array
  readonly targetAdvantages: Float32Array
  readonly targetBehaviorLogprobs: Float32Array
  readonly targetExecutions: Int32Array
  readonly targetPolicyVersions: Int32Array
}

/** Writes the rows and targets of a sorted list of paths. */
class Emitter {
  readonly #entries: readonly ForestEntry[]
  readonly #shared: readonly number[]
  readonly #tokenIds: Int32Array
  readonly #positions: Int32Array
  readonly #subtreeEnd: Int32Array
  readonly #targets: TargetColumns
  readonly #executions = new Map<string, number>()
  /** Row of the token at each depth of the present path. */
  readonly #pathRows: number[] = []
  #row = 0
  #target = 0

  constructor(entries: readonly ForestEntry[], paths: TriePaths) {
    const rows = rowsOf(paths, [...entries.keys()])
    this.#entries = entries
    this.#shared = paths.shared
    this.#tokenIds = new Int32Array(rows)
    this.#positions = new Int32Array(rows)
    this.#subtreeEnd = new Int32Array(rows)
    const targets = entries.reduce((sum, entry) => sum + countTargets(entry.sequence), 0)
    this.#targets = {
      targetRows: new Int32Array(targets),
      targetIds: new Int32Array(targets),
      targetWeights: new Float32Array(targets),
      targetAdvantages: new Float32Array(targets),
      targetBehaviorLogprobs: new Float32Array(targets),
      targetExecutions: new Int32Array(targets),
      targetPolicyVersions: new Int32Array(targets),
    }
  }

  run(contextCost: number): PackedMicroStep {
    for (const [i, entry] of this.#entries.entries()) {
      this.#close(this.#shared[i] ?? 0)
      this.#append(entry.sequence.tokenIds)
      this.#addTargets(entry)
    }
    this.#close(0)
    invariant(this.#row === this.#tokenIds.length, 'the forest emits as many rows as it counted')
    const { targetExecutions, targetPolicyVersions, ...targets } = this.#targets
    return {
      batch: { tokenIds: this.#tokenIds, positions: this.#positions, subtreeEnd: this.#subtreeEnd, ...targets },
      executions: [...this.#executions.keys()],
      targetExecutions,
      targetPolicyVersions,
      flatTokens: this.#entries.reduce((sum, entry) => sum + entry.sequence.tokenIds.length, 0),
      cost: this.#positions.reduce((sum, position) => sum + 1 + contextCost * (position + 1), 0),
    }
  }

  /** Ends the subtrees of the present path below `depth`. */
  #close(depth: number): void {
    for (const row of this.#pathRows.slice(depth)) this.#subtreeEnd[row] = this.#row
    this.#pathRows.length = Math.min(this.#pathRows.length, depth)
  }

  #append(tokenIds: Int32Array): void {
    for (let depth = this.#pathRows.length; depth < tokenIds.length; depth++) {
      this.#tokenIds[this.#row] = tokenIds[depth] ?? 0
      this.#positions[this.#row] = depth
      this.#pathRows.push(this.#row++)
    }
  }

  #addTargets({ execution, sequence }: ForestEntry): void {
    const t = this.#targets
    sequence.targetMask.forEach((bit, depth) => {
      if (bit === 0) return
      const row = this.#pathRows[depth - 1]
      invariant(row !== undefined, `a target of ${execution.key} has a predecessor that predicts it`)
      const at = this.#target++
      t.targetRows[at] = row
      t.targetIds[at] = sequence.tokenIds[depth] ?? 0
      t.targetWeights[at] = execution.tokenWeight
      t.targetAdvantages[at] = execution.advantage
      t.targetBehaviorLogprobs[at] = sequence.behaviorLogprobs?.[depth] ?? 0
      t.targetExecutions[at] = this.#executionIndex(execution.key)
      t.targetPolicyVersions[at] = sequence.policyVersions?.[depth] ?? -1
    })
  }

  #executionIndex(key: string): number {
    const held = this.#executions.get(key)
    if (held !== undefined) return held
    const index = this.#executions.size
    this.#executions.set(key, index)
    return index
  }
}

/** Tokens of a path that carry loss. [tokens] */
export function countTargets(sequence: PackSequence): number {
  return sequence.targetMask.reduce((sum, bit) => sum + (bit === 0 ? 0 : 1), 0)
}
