/**
 * @file The trail family of terminal tasks: every file holds a code and, but for the last, the name of
 * the next file. The agent starts at a named file, follows the names, and writes the codes it met to
 * answer.txt in order. Several tool calls, something to look up, partial credit for every right code.
 *
 * Everything here is a function of the seed: the same seed gives the same tasks on every machine.
 */
import { hashSeed, type Rng, seededRng, shuffled } from '../../../core/rng.ts'
import { CODE_WORDS, FILE_WORDS, FILLER_WORDS } from './words.ts'

export interface TrailStop {
  readonly file: string
  readonly code: string
  /** Absent on the last stop. */
  readonly next: string | undefined
  /** Lines before the code that mean nothing. */
  readonly filler: readonly string[]
}

export interface TrailTask {
  readonly name: string
  readonly instruction: string
  /** In the order they are to be visited. */
  readonly stops: readonly TrailStop[]
  /** Files that no stop names. */
  readonly decoys: readonly TrailStop[]
}

export interface TrailOptions {
  readonly seed: number
  /** Tasks of different splits never share a trail. */
  readonly split: string
  readonly count: number
  /** Stops of a trail, both ends included. */
  readonly minStops: number
  readonly maxStops: number
  /** Lines of unrelated text before the code of every file, as in the output of a chatty tool. Default 0. */
  readonly fillerLines?: number
}

/** Share of the reward that a right but incomplete list of codes can earn; the rest needs the exact list. */
export const PARTIAL_SHARE = 0.2

export function trailTasks(options: TrailOptions): readonly TrailTask[] {
  return Array.from({ length: options.count }, (_, index) => {
    const rng = seededRng(hashSeed('trail', options.seed, options.split, index))
    return oneTask(`${options.split}-${String(index + 1).padStart(3, '0')}`, options, rng)
  })
}

function oneTask(name: string, options: TrailOptions, rng: Rng): TrailTask {
  const count = options.minStops + rng.below(options.maxStops - options.minStops + 1)
  const files = shuffled(FILE_WORDS, rng).map((word) => `${word}.txt`)
  const codes = shuffled(CODE_WORDS, rng)
  const stopAt = (i: number, next: string | undefined): TrailStop => ({
    file: files[i] ?? '',
    code: codes[i] ?? '',
    next,
    filler: fillerText(options.fillerLines ?? 0),
  })
  const stops = Array.from({ length: count }, (_, i) => stopAt(i, i + 1 < count ? files[i + 1] : undefined))
  const decoys = Array.from({ length: 3 }, (_, i) => stopAt(count + i, files[count + 3 + i]))
  return { name, instruction: instructionOf(files[0] ?? ''), stops, decoys }
}

export function instructionOf(start: string): string {
  return `Start at ${start}. Each file holds a code and may name the next file. Append each code to answer.txt, in order.`
}

/** Words of one filler line. */
const FILLER_WIDTH = 8

/** The same in every file: it makes contexts long, not tasks hard. */
function fillerText(lines: number): readonly string[] {
  const words = Array.from({ length: lines * FILLER_WIDTH }, (_, i) => FILLER_WORDS[i % FILLER_WORDS.length] ?? '')
  return Array.from({ length: lines }, (_, line) =>
    words.slice(line * FILLER_WIDTH, (line + 1) * FILLER_WIDTH).join(' '),
  )
}

/** The text of one stop's file. */
export function stopText(stop: TrailStop): string {
  const last = stop.next === undefined ? 'end' : `next ${stop.next}`
  return [...stop.filler, `code ${stop.code}`, last, ''].join('\n')
}

/** What answer.txt has to hold. */
export function answerText(task: TrailTask): string {
  return task.stops.map((stop) => `${stop.code}\n`).join('')
}
