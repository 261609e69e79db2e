/** @file Cuts a stream of sampled ids into text and markers, holding back what is not decided yet. */
import { alternation } from './alternation.ts'
import type { ByteTokenizer } from './byte-tokenizer.ts'

export type Marker = '<tool_call>' | '</tool_call>' | '<think>' | '</think>'
const MARKERS: readonly Marker[] = ['<tool_call>', '</tool_call>', '<think>', '</think>']

export type OutputPiece =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'marker'; readonly marker: Marker }

/**
 * A marker that is one token of the vocabulary is recognized by its id only, so the same text spelled in
 * ordinary tokens is text. Special tokens are dropped. Bytes are held back until they are whole characters.
 */
export class OutputPieces {
  readonly #tokenizer: ByteTokenizer
  readonly #markerIds: ReadonlyMap<number, Marker>
  readonly #spelled: readonly Marker[]
  readonly #spelledPattern: RegExp
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  /** Text that may turn out to be the start of a spelled marker. */
  #held = ''

  constructor(tokenizer: ByteTokenizer) {
    this.#tokenizer = tokenizer
    const ids = MARKERS.map((marker) => [tokenizer.idOfAdded(marker), marker] as const)
    this.#markerIds = new Map(ids.flatMap(([id, marker]) => (id === undefined ? [] : [[id, marker] as const])))
    this.#spelled = ids.flatMap(([id, marker]) => (id === undefined ? [marker] : []))
    this.#spelledPattern = new RegExp(`(${alternation(this.#spelled)})`, 'u')
  }

  push(tokenIds: readonly number[]): OutputPiece[] {
    const pieces: OutputPiece[] = []
    let run: Uint8Array[] = []
    for (const id of tokenIds) {
      const added = this.#tokenizer.addedToken(id)
      const marker = added === undefined ? undefined : this.#markerIds.get(id)
      if (marker === undefined && added?.special !== true) {
        run.push(this.#tokenizer.bytesOf(id))
        continue
      }
      pieces.push(...this.#decoded(run), ...this.finish())
      run = []
      if (marker !== undefined) pieces.push({ kind: 'marker', marker })
    }
    pieces.push(...this.#decoded(run))
    return pieces
  }

  #decoded(run: readonly Uint8Array[]): OutputPiece[] {
    const [first] = run
    if (first === undefined) return []
    return this.#text(this.#decoder.decode(run.length === 1 ? first : Buffer.concat(run), { stream: true }))
  }

  /** Everything held back, as text. */
  finish(): OutputPiece[] {
    const pieces = this.#text(this.#decoder.decode())
    if (this.#held !== '') pieces.push({ kind: 'text', text: this.#held })
    this.#held = ''
    return pieces
  }

  #text(added: string): OutputPiece[] {
    if (added === '') return []
    if (this.#spelled.length === 0) return [{ kind: 'text', text: added }]
    const parts = (this.#held + added).split(this.#spelledPattern)
    const tail = parts.pop() ?? ''
    const held = heldLength(tail, this.#spelled)
    this.#held = tail.slice(tail.length - held)
    const decided = [...parts, tail.slice(0, tail.length - held)].map((text, i): OutputPiece =>
      i % 2 === 1 ? { kind: 'marker', marker: text as Marker } : { kind: 'text', text },
    )
    return decided.filter((piece) => piece.kind === 'marker' || piece.text !== '')
  }
}

/** Length of the longest end of `text` that begins one of the markers. */
function heldLength(text: string, markers: readonly string[]): number {
  const longest = Math.max(...markers.map((marker) => marker.length - 1))
  for (let length = Math.min(longest, text.length); length > 0; length--) {
    if (markers.some((marker) => marker.startsWith(text.slice(-length)))) return length
  }
  return 0
}
