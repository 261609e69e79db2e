/** Time as an argument, so that pure code and the simulator never read the wall clock. */
export interface Clock {
  /** Milliseconds since an arbitrary epoch; never decreases. */
  now(): number
}
