/** @file One thing that is wrong, or odd, about a run file. */
export interface Finding {
  readonly severity: 'error' | 'warning'
  readonly code: 'E_CONFIG_CAPACITY' | 'E_CONFIG_CONFLICT'
  /** The field to look at first. */
  readonly path: readonly string[]
  readonly message: string
}
