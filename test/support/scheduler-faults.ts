/** @file What may go wrong in the scheduler's test world. */

/** What may go wrong, at random moments; at most so often each. */
export interface WorldFaults {
  /** Of cell processes. */
  readonly deaths?: number
  /** Answers of living cells that never come: their cell counts as failed instead. */
  readonly lostAnswers?: number
  /** Of engines beside the cells. */
  readonly engineDeaths?: number
  readonly exclusions?: number
  readonly executionFailures?: number
  /** Reports that come a second time, later. */
  readonly echoes?: number
  /** Kills of the control process: the run resumes from its last checkpoint. */
  readonly controlDeaths?: number
  /** Orderly stops, each followed by a resume. */
  readonly stops?: number
}

export interface WorldOptions extends WorldFaults {
  readonly seed: number
  /** False: an engine beside the cells that failed never answers again. */
  readonly enginesReturn?: boolean
  /** The clock of the driver is set back now and then. */
  readonly clockJumps?: boolean
  /** Pushes the state through JSON now and then, and freezes it. */
  readonly throughJson?: boolean
}
