/**
 * @file Root-to-leaf paths merged into one depth-first forest.
 *
 * Sorted by their token ids, paths stand in depth-first order of their trie, and each shares with the one
 * before it exactly the rows it does not have to add. A row is shared by token ids alone: the same ids from
 * the root are the same computation, whoever produced them.
 */
import { invariant } from '../core/errors.ts'
import type { MicroBatch } from './batch.ts'

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

export class Forest {
  readonly #merge: boolean
  readonly #entries: ForestEntry[]
  #rows: number

  /** @param merge false keeps every path a tree of its own. */
  constructor(merge: boolean, entries: readonly ForestEntry[] = [], rows = 0) {
    this.#merge = merge
    this.#entries = [...entries]
    this.#rows = rows
  }

  /** Rows the forest takes. [tokens] */
  get rows(): number {
    return this.#rows
  }

  get entries(): readonly ForestEntry[] {
    return this.#entries
  }

  /** A copy with more paths. Cost: their length times the logarithm of the number of paths. */
  with(added: readonly ForestEntry[]): Forest {
    const copy = new Forest(this.#merge, this.#entries, this.#rows)
    for (const entry of added) copy.#insert(entry)
    return copy
  }

  #insert(entry: ForestEntry): void {
    const { tokenIds } = entry.sequence
    if (!this.#merge) {
      this.#entries.push(entry)
      this.#rows += tokenIds.length
      return
    }
    let low = 0
    let high = this.#entries.length
    let shared = 0
    // The longest prefix shared with any path is shared with a neighbor, and the search ends between both.
    while (low < high) {
      const middle = (low + high) >> 1
      const other = this.#entries[middle]?.sequence.tokenIds ?? tokenIds
      const common = commonPrefix(tokenIds, other)
      shared = Math.max(shared, common)
      if (common === other.length || (tokenIds[common] ?? -1) > (other[common] ?? 0)) low = middle + 1
      else high = middle
    }
    this.#entries.splice(low, 0, entry)
    this.#rows += tokenIds.length - shared
  }

  /** Cut in two where the larger part is smallest; undefined for fewer than two paths. */
  halves(): readonly [Forest, Forest] | undefined {
    const lengths = this.#entries.map((entry) => entry.sequence.tokenIds.length)
    let left = lengths[0] ?? 0
    let best: { readonly at: number; readonly rows: number } | undefined
    for (let at = 1; at < lengths.length; at++) {
      const shared = this.#sharedWithPrevious(at)
      const larger = Math.max(left, this.#rows - left + shared)
      if (best === undefined || larger < best.rows) best = { at, rows: larger }
      left += (lengths[at] ?? 0) - shared
    }
    if (best === undefined) return undefined
    const empty = new Forest(this.#merge)
    return [empty.with(this.#entries.slice(0, best.at)), empty.with(this.#entries.slice(best.at))]
  }

  #sharedWithPrevious(at: number): number {
    const here = this.#entries[at]?.sequence.tokenIds
    const previous = this.#entries[at - 1]?.sequence.tokenIds
    return this.#merge && here !== undefined && previous !== undefined ? commonPrefix(previous, here) : 0
  }

  /** @param contextCost work of attending to one earlier token, relative to the dense work of one row. */
  emit(contextCost: number): PackedMicroStep {
    return new Emitter(this.#rows, this.#entries).run(this.#merge, contextCost)
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
  readonly #tokenIds: Int32Array
  readonly #positions: Int32Array
  readonly #subtreeEnd: Int32Array
  readonly #targets: TargetColumns
  readonly #executions = new Map<string, number>()
  /** Row of the token at each depth of the present path. */
  readonly #pathRows: number[] = []
  #row = 0
  #target = 0

  constructor(rows: number, entries: readonly ForestEntry[]) {
    this.#entries = entries
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

  run(merge: boolean, contextCost: number): PackedMicroStep {
    let previous: Int32Array = new Int32Array(0)
    for (const entry of this.#entries) {
      const { tokenIds } = entry.sequence
      this.#close(merge ? commonPrefix(previous, tokenIds) : 0)
      this.#append(tokenIds)
      this.#addTargets(entry)
      previous = tokenIds
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
