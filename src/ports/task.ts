/** @file A task folder in Harbor format, loaded and validated. */

export interface Task {
  /** Folder name, unique within its set. */
  readonly name: string
  /** Absolute path of the task folder. */
  readonly folder: string
  readonly instruction: string
  /** From task.toml `[agent] timeout_sec`, else the run's default. [ms] */
  readonly agentTimeoutMs: number
  /** From task.toml `[verifier] timeout_sec`, else the run's default. [ms] */
  readonly verifierTimeoutMs: number
}
