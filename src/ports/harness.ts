/** @file A black-box agent program that is given a base URL and a key. */
import type { ProcessEnd, SandboxInstance } from './sandbox.ts'

export interface HarnessEndpoint {
  /** Without a trailing slash and without a version: `http://127.0.0.1:PORT/x/EXECUTION`, as seen inside the sandbox. */
  readonly baseUrl: string
  readonly apiKey: string
  readonly model: string
  /** What the model accepts. [tokens] */
  readonly contextWindow: number
  readonly maxOutputTokens: number
}

export interface HarnessLaunch {
  readonly sandbox: SandboxInstance
  readonly instruction: string
  readonly endpoint: HarnessEndpoint
  readonly timeoutMs: number
  /** Host folder for stdout and stderr. */
  readonly logFolder: string
}

export interface HarnessProgress {
  (message: string): void
}

export interface Harness {
  readonly name: string
  readonly version: string
  /** Folders of the host it reads while it runs. */
  readonly readOnlyFolders: readonly string[]
  /**
   * Makes the harness runnable (installs it into the cache on first use).
   * @throws GyreError E_HARNESS_NOT_FOUND, E_HARNESS_INSTALL, E_HARNESS_PLATFORM.
   */
  prepare(progress: HarnessProgress): Promise<void>
  /**
   * Runs it on one instruction to its end. A crash or a timeout is data in the result, not an error.
   * @throws GyreError E_HARNESS_LAUNCH when it cannot be started at all.
   */
  launch(launch: HarnessLaunch, signal: AbortSignal): Promise<ProcessEnd>
}
