/** A pair of symbols with the count it had when it was pushed. */
interface HeapEntry {
  readonly count: number
  readonly key: number
}

/** Binary heap: the highest count first, the smaller key first among equals. */
export class MaxPairHeap {
  readonly #entries: HeapEntry[] = []

  push(count: number, key: number): void {
    const entries = this.#entries
    const entry = { count, key }
    let hole = entries.length
    entries.push(entry)
    while (hole > 0) {
      const parent = (hole - 1) >> 1
      const above = entries[parent] as HeapEntry
      if (!precedes(entry, above)) break
      entries[hole] = above
      hole = parent
    }
    entries[hole] = entry
  }

  pop(): HeapEntry | undefined {
    const entries = this.#entries
    const top = entries[0]
    const last = entries.pop()
    if (top === undefined || last === undefined || entries.length === 0) return top
    let hole = 0
    for (;;) {
      let child = 2 * hole + 1
      if (child >= entries.length) break
      const sibling = entries[child + 1]
      if (sibling !== undefined && precedes(sibling, entries[child] as HeapEntry)) child++
      const below = entries[child] as HeapEntry
      if (!precedes(below, last)) break
      entries[hole] = below
      hole = child
    }
    entries[hole] = last
    return top
  }
}

function precedes(a: HeapEntry, b: HeapEntry): boolean {
  return a.count > b.count || (a.count === b.count && a.key < b.key)
}
