/**
 * @file Shows a run to whoever watches: a panel redrawn in place on a terminal, plain lines in a pipe, JSON lines for
 * programs. All three take the same calls.
 */
import type { Clock } from '../core/clock.ts'
import { NO_PAINT, type Paint, lifeLine, panelLines, type RunView, stepLine } from './panel.ts'

export interface Display {
  /** The present picture; call it as often as it changes. */
  update(view: RunView): void
  /** A step is done; `view` is the picture after it. */
  stepDone(view: RunView, metrics: Readonly<Record<string, number>>): void
  /** Something worth a line of its own that stays. */
  note(text: string): void
  /** Draws the last picture and lets go of the terminal. Idempotent. */
  end(): void
}

export interface DisplayOptions {
  readonly kind: 'panel' | 'plain' | 'json'
  /** Gets text with its line ends. */
  readonly write: (text: string) => void
  readonly width: () => number
  readonly clock: Clock
  readonly paint?: Paint
}

/** At most eight pictures a second. [ms] */
const FRAME_MS = 125
/** Longest silence of the plain lines while the picture changes. [ms] */
const LIFE_MS = 15_000
/** Shortest pause between two pictures in JSON. [ms] */
const JSON_MS = 1000

export function createDisplay(options: DisplayOptions): Display {
  switch (options.kind) {
    case 'panel':
      return new PanelDisplay(options)
    case 'plain':
      return plainDisplay(options)
    case 'json':
      return jsonDisplay(options)
    default:
      return options.kind satisfies never
  }
}

class PanelDisplay implements Display {
  readonly #options: DisplayOptions
  #view: RunView | undefined
  #drawnLines = 0
  #lastFrameAt = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined
  #hasEnded = false

  constructor(options: DisplayOptions) {
    this.#options = options
  }

  update(view: RunView): void {
    if (this.#hasEnded) return
    this.#view = view
    const wait = this.#lastFrameAt + FRAME_MS - this.#options.clock.now()
    if (wait <= 0) this.#draw('')
    else this.#timer ??= setTimeout(() => this.#draw(''), wait).unref()
  }

  stepDone(view: RunView): void {
    this.update(view)
  }

  note(text: string): void {
    if (this.#hasEnded) this.#options.write(`${text}\n`)
    else this.#draw(`${text}\n`)
  }

  end(): void {
    if (this.#hasEnded) return
    this.#draw('')
    this.#hasEnded = true
  }

  /** `above` scrolls away over the panel. One write, so that nothing flickers. */
  #draw(above: string): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const { clock, width, write, paint = NO_PAINT } = this.#options
    this.#lastFrameAt = clock.now()
    // One column less: a full line would wrap on some terminals and spoil the count.
    const lines = this.#view === undefined ? [] : panelLines(this.#view, Math.max(20, width() - 1), paint)
    const back = this.#drawnLines > 0 ? `\u001b[${this.#drawnLines}A` : ''
    this.#drawnLines = lines.length
    const text = `${back}\r\u001b[J${above}${lines.map((line) => `${line}\n`).join('')}`
    write(text)
  }
}

function plainDisplay({ write, clock }: DisplayOptions): Display {
  let quietSince = clock.now()
  const line = (text: string): void => {
    quietSince = clock.now()
    write(`${text}\n`)
  }
  return {
    update: (view) => {
      if (clock.now() - quietSince >= LIFE_MS) line(lifeLine(view))
    },
    stepDone: (view) => line(stepLine(view)),
    note: line,
    end: () => undefined,
  }
}

function jsonDisplay({ write, clock }: DisplayOptions): Display {
  let lastAt = Number.NEGATIVE_INFINITY
  const line = (record: Readonly<Record<string, unknown>>): void => write(`${JSON.stringify(record)}\n`)
  return {
    update: (view) => {
      if (clock.now() - lastAt < JSON_MS) return
      lastAt = clock.now()
      // The curve is in the step lines.
      line({ kind: 'view', ...view, rewards: undefined })
    },
    stepDone: (view, metrics) => line({ kind: 'step', step: view.step, burst: view.burst, metrics }),
    note: (text) => line({ kind: 'note', text }),
    end: () => undefined,
  }
}
