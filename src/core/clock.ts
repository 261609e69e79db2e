/** Time as an argument, so that pure code and the simulator never read the wall clock. */
export interface Clock {
  /** Milliseconds since an arbitrary epoch; never decreases, whatever happens to the wall clock. */
  now(): number
}

/** Where waits come from, so that a whole cluster can run on virtual time. */
export interface Timers {
  /** Calls `action` once, after at least `delayMs`. @returns what cancels it; harmless afterwards. */
  after(delayMs: number, action: () => void): () => void
}
