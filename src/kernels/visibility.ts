/** @file Which key tiles a block of rows may see in a packed forest. */

/**
 * Writes the tile list of every block: entry = tile * 2 + (1 when some row may not see some key of the tile).
 * @param ends [T, padded to a tile with 0] first row after each token's subtree.
 * @param lists receives the entries; `starts` and `lengths` are per block.
 */
export function listVisibleTiles(
  ends: Int32Array,
  rows: number,
  block: number,
  tile: number,
  out: { readonly starts: Int32Array; readonly lengths: Int32Array; readonly lists: Int32Array },
): void {
  const tiles = Math.ceil(rows / tile)
  const highest = new Int32Array(tiles)
  const lowest = new Int32Array(tiles)
  for (let t = 0; t < tiles; t++) {
    const part = ends.subarray(t * tile, t * tile + tile)
    highest[t] = part.reduce((a, b) => Math.max(a, b), 0)
    lowest[t] = part.reduce((a, b) => Math.min(a, b), rows)
  }
  let at = 0
  for (let b = 0, first = 0; first < rows; b++, first += block) {
    const stop = Math.min(rows, first + block)
    out.starts[b] = at
    for (let t = 0; t * tile < stop; t++) {
      if ((highest[t] ?? 0) <= first) continue
      const full = t * tile + tile - 1 <= first && (lowest[t] ?? 0) >= stop
      out.lists[at++] = t * 2 + (full ? 0 : 1)
    }
    out.lengths[b] = at - (out.starts[b] ?? 0)
  }
}
