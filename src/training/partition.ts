/**
 * @file Divides the paths of a trie into parts that fit a budget of rows, with few rows in more than one part.
 *
 * Only lengths matter here: path i, in depth-first order, has `lengths[i]` rows, of which it shares the first
 * `shared[i]` with path i - 1. A part is a list of paths, ascending; it has a row for every distinct prefix of them.
 */

export interface TriePaths {
  /** Rows of each path. [tokens] */
  readonly lengths: readonly number[]
  /** Rows it shares with the path before it; 0 for the first. [tokens] */
  readonly shared: readonly number[]
}

/** Ascending numbers of paths. */
export type Part = readonly number[]

/** With more pieces than this they are not tried in pairs. */
const MOST_PIECES = 128
/** What a part costs beside its rows: of equal divisions the one into fewer parts is taken. [rows] */
const PART_COST = 1

/** Rows of a part that it shares with the path before, for each of its paths. [tokens] */
export function sharedWithin({ shared }: TriePaths, part: Part): readonly number[] {
  return part.map((path, i) => {
    const previous = part[i - 1]
    if (previous === undefined) return 0
    let least = Infinity
    for (let at = previous + 1; at <= path; at++) least = Math.min(least, shared[at] ?? 0)
    return least
  })
}

/** [tokens] */
export function rowsOf(paths: TriePaths, part: Part): number {
  const shared = sharedWithin(paths, part)
  return part.reduce((sum, path, i) => sum + (paths.lengths[path] ?? 0) - (shared[i] ?? 0), 0)
}

/**
 * Parts of at most `budget` rows; a longer path is a part of its own. The best of two divisions: runs of neighbors cut
 * where the fewest rows are copied, and single paths, both then joined while anything fits together. Not always the
 * best there is, which would be bin packing. At least `wanted` parts while there are paths enough; where the budget asks
 * for fewer, the largest part is as small as that many runs allow.
 */
export function divide(paths: TriePaths, budget: number, wanted = 1): readonly Part[] {
  const count = paths.lengths.length
  const singles = Array.from({ length: count }, (_, path): Part => [path])
  const starts = [runs(paths, budget, PART_COST), ...(count > MOST_PIECES ? [] : [singles])]
  const [parts = []] = starts
    .map((pieces) => joined(paths, pieces, budget))
    .toSorted((a, b) => totalCost(paths, a) - totalCost(paths, b))
  return parts.length >= wanted ? parts : spread(paths, budget, wanted)
}

function totalCost(paths: TriePaths, parts: readonly Part[]): number {
  return parts.reduce((sum, part) => sum + rowsOf(paths, part) + PART_COST, 0)
}

/** Runs of neighbors: of all ways to cut, the one that adds the fewest rows, a run more counted as `runCost` rows. */
function runs({ lengths, shared }: TriePaths, budget: number, runCost: number): readonly Part[] {
  const best = [0]
  const starts = [0]
  for (let end = 1; end <= lengths.length; end++) {
    let rows = 0
    let least = Infinity
    for (let from = end - 1; from >= 0; from--) {
      // The first path of a run is whole; the one after it adds what it does not share.
      rows += (lengths[from] ?? 0) - (from + 1 < end ? (shared[from + 1] ?? 0) : 0)
      if (rows > budget && from < end - 1) break
      const cost = (best[from] ?? 0) + (shared[from] ?? 0) + runCost
      if (cost >= least) continue
      least = cost
      starts[end] = from
    }
    best[end] = least
  }
  const parts: Part[] = []
  for (let end = lengths.length; end > 0; end = starts[end] ?? 0) parts.push(range(starts[end] ?? 0, end))
  return parts.toReversed()
}

function range(from: number, to: number): Part {
  return Array.from({ length: to - from }, (_, i) => from + i)
}

interface Piece {
  readonly part: Part
  readonly rows: number
}

interface Pair {
  readonly a: Piece
  readonly b: Piece
  readonly both: Piece
}

/** Joins the two pieces that share most, and among those the two that fill the budget best, until none fit together. */
function joined(paths: TriePaths, parts: readonly Part[], budget: number): readonly Part[] {
  if (parts.length > MOST_PIECES) return parts
  let pieces = parts.map((part): Piece => ({ part, rows: rowsOf(paths, part) }))
  const join = (a: Piece, b: Piece): Pair => {
    const part = [...a.part, ...b.part].toSorted((x, y) => x - y)
    return { a, b, both: { part, rows: rowsOf(paths, part) } }
  }
  let pairs = pieces.flatMap((a, i) => pieces.slice(i + 1).map((b) => join(a, b)))
  for (;;) {
    pairs = pairs.filter(({ both }) => both.rows <= budget)
    const [first, ...others] = pairs
    if (first === undefined) return pieces.map(({ part }) => part)
    const best = others.reduce((one, other) => (isBetter(other, one) ? other : one), first)
    const isFree = (piece: Piece): boolean => piece !== best.a && piece !== best.b
    pieces = pieces.filter(isFree)
    pairs = pairs.filter(({ a, b }) => isFree(a) && isFree(b))
    pairs.push(...pieces.map((piece) => join(piece, best.both)))
    pieces.push(best.both)
  }
}

function saving({ a, b, both }: Pair): number {
  return a.rows + b.rows - both.rows
}

function isBetter(one: Pair, other: Pair): boolean {
  const more = saving(one) - saving(other)
  return more > 0 || (more === 0 && one.both.rows > other.both.rows)
}

/** At least `wanted` parts: runs under the smallest cap that so many runs can keep, then halves of the largest. */
function spread(paths: TriePaths, budget: number, wanted: number): readonly Part[] {
  const all = rowsOf(paths, range(0, paths.lengths.length))
  let low = Math.min(
    budget,
    paths.lengths.reduce((longest, length) => Math.max(longest, length), 0),
  )
  let high = Math.min(budget, all)
  while (low < high) {
    const cap = (low + high) >> 1
    if (countRuns(paths, cap) <= wanted) high = cap
    else low = cap + 1
  }
  let parts = runs(paths, high, all)
  while (parts.length < wanted) {
    const largest = parts
      .filter((part) => part.length > 1)
      .reduce((one: Part, other) => (rowsOf(paths, other) > rowsOf(paths, one) ? other : one), [])
    if (largest.length === 0) break
    parts = [...parts.filter((part) => part !== largest), ...halves(paths, largest)]
  }
  return parts
}

/** The fewest runs under a cap. */
function countRuns({ lengths, shared }: TriePaths, cap: number): number {
  let count = 0
  let rows = Infinity
  lengths.forEach((length, path) => {
    rows += length - (shared[path] ?? 0)
    if (rows <= cap) return
    count++
    rows = length
  })
  return count
}

/** A part of two paths or more, cut where the larger half is smallest. */
function halves(paths: TriePaths, part: Part): readonly [Part, Part] {
  const cuts = part.slice(1).map((_, i): [Part, Part] => [part.slice(0, i + 1), part.slice(i + 1)])
  const larger = ([a, b]: [Part, Part]): number => Math.max(rowsOf(paths, a), rowsOf(paths, b))
  return cuts.reduce((one, other) => (larger(other) < larger(one) ? other : one))
}
