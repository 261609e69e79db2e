/** @file The last picture of a run as a file, for whoever looks at it from another process. */
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import type { RunView } from './panel.ts'

const NAME = 'live.json'
/** Shortest pause between two pictures. [ms] */
const PAUSE_MS = 1000

/** What is kept: the curve is in the metrics. Numbers that are not measured are null. */
export type LivePicture = Omit<RunView, 'rewards'>

/** @param folder of the run. @returns what to call with every picture; it writes one a second at most. */
export function openLiveFile(folder: string, clock: Clock): (view: RunView) => void {
  const file = join(folder, NAME)
  let nextAt = Number.NEGATIVE_INFINITY
  return ({ rewards: _rewards, ...picture }) => {
    if (clock.now() < nextAt) return
    nextAt = clock.now() + PAUSE_MS
    try {
      writeFileSync(`${file}.part`, JSON.stringify(picture))
      renameSync(`${file}.part`, file)
    } catch {
      // A full disk must not end a run for the sake of its picture.
    }
  }
}

/** undefined before the first picture. */
export function readLiveFile(folder: string): LivePicture | undefined {
  const file = join(folder, NAME)
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as LivePicture) : undefined
}
