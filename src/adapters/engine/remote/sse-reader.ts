/** @file Server-sent events out of bytes, however the bytes are cut. */
import { StringDecoder } from 'node:string_decoder'

const LINE_END = /\r\n|\r|\n/

export class SseReader {
  readonly #decoder = new StringDecoder('utf8')
  readonly #maxCharacters: number
  /** Pieces of the line that has not ended. */
  #pieces: string[] = []
  #data: string[] = []
  /** Characters held in `#pieces` and `#data`. */
  #held = 0
  #isAfterCarriageReturn = false
  #isFirst = true

  /** @param maxCharacters longest event. */
  constructor(maxCharacters: number) {
    this.#maxCharacters = maxCharacters
  }

  /**
   * The data of every event that ended in these bytes, in order.
   * @throws RangeError when an event is longer than allowed.
   */
  push(bytes: Uint8Array): string[] {
    let text = this.#decoder.write(bytes)
    if (text === '') return []
    if (this.#isFirst) {
      this.#isFirst = false
      if (text.startsWith('\uFEFF')) text = text.slice(1)
    }
    // CR LF may be cut in its middle: the CR has ended the line already.
    if (this.#isAfterCarriageReturn && text.startsWith('\n')) text = text.slice(1)
    this.#isAfterCarriageReturn = text.endsWith('\r')
    const events: string[] = []
    const read = this.#held === 0 ? plainEvents(text, events) : 0
    if (read === text.length) return events
    const [first = '', ...rest] = text.slice(read).split(LINE_END)
    this.#hold(this.#pieces, first)
    for (const next of rest) {
      const line = this.#pieces.join('')
      this.#held -= line.length
      this.#pieces = []
      this.#endLine(line, events)
      this.#hold(this.#pieces, next)
    }
    return events
  }

  #endLine(line: string, events: string[]): void {
    if (line === '') {
      if (this.#data.length > 0) events.push(this.#data.join('\n'))
      for (const part of this.#data) this.#held -= part.length
      this.#data = []
      return
    }
    if (!line.startsWith('data')) return
    if (line.length > 4 && line[4] !== ':') return
    this.#hold(this.#data, line.slice(line[5] === ' ' ? 6 : 5))
  }

  #hold(into: string[], text: string): void {
    into.push(text)
    this.#held += text.length
    if (this.#held > this.#maxCharacters) {
      throw new RangeError(`an event is longer than ${this.#maxCharacters} characters`)
    }
  }
}

/** Reads events as most servers write them, one line of data each; returns where the first other one begins. */
function plainEvents(text: string, events: string[]): number {
  let at = 0
  if (text.includes('\r')) return at
  while (text.startsWith('data: ', at)) {
    const end = text.indexOf('\n', at)
    if (end < 0 || text[end + 1] !== '\n') break
    events.push(text.slice(at + 6, end))
    at = end + 2
  }
  return at
}
