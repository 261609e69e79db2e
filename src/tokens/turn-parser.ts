/**
 * @file Parses a sampled turn of the form
 * `<think>\nTHINKING\n</think>\n\nTEXT\n<tool_call>\nCALL\n</tool_call>`.
 *
 * What a CALL looks like is the model family's own: a CallReader knows it. The line breaks next to a marker are glue
 * of the chat template and belong to neither side, so what the template wrote is read back exactly. Whatever is no
 * complete call is text, verbatim.
 */
import type { ByteTokenizer } from './byte-tokenizer.ts'
import type { OutputEvent, OutputParser } from './codec.ts'
import { OutputPieces, type Marker, type OutputPiece } from './output-pieces.ts'

export interface CallText {
  readonly name: string
  /** A JSON object. */
  readonly argumentsText: string
}

/** Reads what stands between `<tool_call>` and `</tool_call>`; undefined when it is no call. */
export type CallReader = (text: string) => CallText | undefined

type State = 'text' | 'thinking' | 'call'

export class TurnParser implements OutputParser {
  readonly #pieces: OutputPieces
  readonly #readCall: CallReader
  #state: State
  /** Leading line breaks that are still glue. */
  #glueLeft = 0
  /** White space that is glue if a marker follows. */
  #held = ''
  /** True while only white space followed the last call. */
  #isAfterCall = false
  #call = ''
  #calls = 0
  #events: OutputEvent[] = []

  /** @param startsThinking True when the generation prompt already opened the thinking. */
  constructor(tokenizer: ByteTokenizer, readCall: CallReader, startsThinking: boolean) {
    this.#pieces = new OutputPieces(tokenizer)
    this.#readCall = readCall
    this.#state = startsThinking ? 'thinking' : 'text'
  }

  push(tokenIds: readonly number[]): readonly OutputEvent[] {
    return this.#consume(this.#pieces.push(tokenIds))
  }

  finish(): readonly OutputEvent[] {
    const events = [...this.#consume(this.#pieces.finish())]
    if (this.#state === 'call') this.#giveUpCall('')
    else if (!this.#isAfterCall) this.#emit(this.#held)
    this.#held = ''
    return [...events, ...this.#take()]
  }

  #consume(pieces: readonly OutputPiece[]): readonly OutputEvent[] {
    for (const piece of pieces) {
      if (piece.kind === 'text') this.#onText(piece.text)
      else this.#onMarker(piece.marker)
    }
    return this.#take()
  }

  #take(): readonly OutputEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }

  #onText(text: string): void {
    if (this.#state === 'call') {
      this.#call += text
      return
    }
    const fresh = this.#held + this.#dropGlue(text)
    this.#held = ''
    const isBlankAfterCall = this.#isAfterCall && fresh.trim() === ''
    const keep = isBlankAfterCall ? 0 : fresh.endsWith('\n') ? fresh.length - 1 : fresh.length
    this.#held = fresh.slice(keep)
    this.#emit(fresh.slice(0, keep))
  }

  #dropGlue(text: string): string {
    let at = 0
    while (at < this.#glueLeft && text[at] === '\n') at++
    this.#glueLeft = at === text.length ? this.#glueLeft - at : 0
    return text.slice(at)
  }

  #onMarker(marker: Marker): void {
    if (this.#state === 'text' && marker === '<think>') this.#enter('thinking', 1)
    else if (this.#state === 'thinking' && marker === '</think>') this.#enter('text', 2)
    else if (this.#state === 'text' && marker === '<tool_call>') this.#beginCall()
    else if (this.#state === 'call' && marker === '</tool_call>') this.#endCall()
    else if (this.#state === 'call' && marker === '<tool_call>') {
      this.#giveUpCall('')
      this.#beginCall()
    } else {
      // A marker out of place is text, and so is the line break before it.
      this.#glueLeft = 0
      this.#onText(marker)
    }
  }

  #enter(state: State, glue: number): void {
    this.#state = state
    this.#held = ''
    this.#glueLeft = glue
  }

  #beginCall(): void {
    this.#state = 'call'
    this.#glueLeft = 0
    this.#call = ''
  }

  #endCall(): void {
    const call = this.#readCall(this.#call)
    if (call === undefined) {
      this.#giveUpCall('</tool_call>')
      return
    }
    this.#enter('text', 0)
    this.#isAfterCall = true
    this.#events.push({ kind: 'tool-call', index: this.#calls++, ...call })
  }

  #giveUpCall(close: string): void {
    const text = `${this.#held}<tool_call>${this.#call}${close}`
    this.#enter('text', 0)
    this.#emit(text)
  }

  #emit(text: string): void {
    if (text === '') return
    this.#isAfterCall = false
    this.#events.push({ kind: this.#state === 'thinking' ? 'thinking' : 'text', text })
  }
}
