/** @file Turns the work left behind into a reward. */
import type { SandboxInstance } from './sandbox.ts'
import type { Task } from './task.ts'

export interface Score {
  /** The verifier's number, or the share of passed tests. */
  readonly reward: number
  /** Named parts, when the verifier reports them. */
  readonly parts: Readonly<Record<string, number>>
}

export interface Scorer {
  readonly name: string
  /**
   * Scores the workspace as it is. Any number the verifier wrote is a legitimate score, 0 included.
   * @throws GyreError E_SCORER_TIMEOUT, E_SCORER_FAILED or E_SCORER_NO_REWARD (all retryable): never a reward 0.
   */
  score(task: Task, sandbox: SandboxInstance, logFolder: string, signal: AbortSignal): Promise<Score>
}
