/** @file Where a harness runs: a workspace, a process group, a clean environment. */
import type { ExecutionId } from '../core/ids.ts'
import type { Task } from './task.ts'

export interface SandboxSpec {
  readonly executionId: ExecutionId
  readonly task: Task
  /** Host folder for logs and the preserved workspace of this execution; exists. */
  readonly executionFolder: string
  readonly limits: SandboxLimits
  /** The one address the sandbox may reach. */
  readonly gatewayUrl: string
  /** Host folders the harness needs, mounted read-only at the same path. */
  readonly readOnlyFolders: readonly string[]
}

export interface SandboxLimits {
  /** Address space of each process. [bytes] 0 for no limit. */
  readonly memoryBytes: number
  /** Largest file. [bytes] 0 for no limit. */
  readonly fileBytes: number
  /** Processes of the sandbox. 0 for no limit. */
  readonly processes: number
}

export interface ProcessSpec {
  readonly argv: readonly string[]
  /** The whole environment; nothing is inherited. */
  readonly env: Readonly<Record<string, string>>
  /** As seen inside the sandbox. Defaults to the workspace. */
  readonly cwd?: string
  readonly timeoutMs: number
  /** Host files that receive the streams. */
  readonly stdoutFile: string
  readonly stderrFile: string
}

export interface ProcessEnd {
  /** undefined when a signal ended it. */
  readonly exitCode: number | undefined
  readonly signal: string | undefined
  readonly timedOut: boolean
  readonly durationMs: number
  /** What the program itself said of its failure, when it says so. */
  readonly detail?: string
}

export interface SandboxInstance {
  /** Workspace, home and verifier-log folders as seen inside. */
  readonly workspace: string
  readonly home: string
  readonly verifierLogs: string
  /** Where the scorer puts the tests. Nothing is there before. */
  readonly tests: string
  /** The gateway's base URL as seen inside. */
  readonly gatewayUrl: string
  /** The same folders on the host. */
  readonly hostWorkspace: string
  readonly hostHome: string
  readonly hostVerifierLogs: string
  readonly hostTests: string
  /**
   * Runs to the end. When `signal` aborts or the time is over, the whole process group and everything it
   * spawned is ended: SIGTERM, then SIGKILL after a short grace. Never leaves a process behind.
   * @throws GyreError E_SANDBOX_SPAWN when the program cannot be started.
   */
  run(spec: ProcessSpec, signal: AbortSignal): Promise<ProcessEnd>
  /** Ends every process and removes the folders. Idempotent. */
  destroy(): Promise<void>
}

export interface Sandbox {
  readonly name: string
  /** Copies the task's environment into a fresh workspace. @throws GyreError E_SANDBOX_CREATE. */
  create(spec: SandboxSpec): Promise<SandboxInstance>
  /** Removes what a killed control process left behind: processes and folders. Returns how many of each. */
  sweep(): Promise<{ readonly processes: number; readonly folders: number }>
}
