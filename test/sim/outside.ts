/** @file What executions meet beside the policy: sandboxes, harnesses and scorers, each with its ways to fail. */
import { GyreError } from '../../src/core/errors.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import type { Harness, HarnessLaunch } from '../../src/ports/harness.ts'
import type { ProcessEnd, Sandbox, SandboxInstance, SandboxSpec } from '../../src/ports/sandbox.ts'
import type { Score, Scorer } from '../../src/ports/scorer.ts'
import type { Task } from '../../src/ports/task.ts'
import type { HarnessFate } from './chaos.ts'
import type { SimForwarding } from './forwarding.ts'
import type { Surroundings } from './machines.ts'

interface Box extends SandboxInstance {
  readonly executionId: ExecutionId
  readonly fate: HarnessFate
}

const fateOf = (sandbox: SandboxInstance): HarnessFate => (sandbox as Box).fate

export class SimSandbox implements Sandbox {
  readonly name = 'sim'
  readonly #around: Surroundings
  /** Those that were made and not destroyed. */
  readonly alive = new Set<ExecutionId>()

  constructor(around: Surroundings) {
    this.#around = around
  }

  async create({ executionId, gatewayUrl }: SandboxSpec): Promise<SandboxInstance> {
    const { time, chaos } = this.#around
    const fate = chaos.harness(executionId)
    await time.sleep(3)
    if (fate.sandboxFails) {
      chaos.count('sandbox-failed')
      throw new GyreError('no space for a sandbox', { boundary: 'sandbox', code: 'E_SANDBOX_CREATE' })
    }
    this.alive.add(executionId)
    const folder = `/sim/${executionId}`
    const box: Box = {
      executionId,
      fate,
      gatewayUrl,
      workspace: folder,
      home: folder,
      verifierLogs: folder,
      tests: folder,
      hostWorkspace: folder,
      hostHome: folder,
      hostVerifierLogs: folder,
      hostTests: folder,
      run: () => Promise.reject(new Error('a virtual harness starts no program')),
      destroy: async () => {
        await time.sleep(2)
        this.alive.delete(executionId)
      },
    }
    return box
  }

  sweep(): Promise<{ readonly processes: number; readonly folders: number }> {
    return Promise.resolve({ processes: 0, folders: 0 })
  }
}

export class SimHarness implements Harness {
  readonly name = 'sim'
  readonly version = '0'
  readonly readOnlyFolders: readonly string[] = []
  readonly #forwarding: SimForwarding
  readonly #around: Surroundings

  constructor(forwarding: SimForwarding, around: Surroundings) {
    this.#forwarding = forwarding
    this.#around = around
  }

  prepare(): Promise<void> {
    return Promise.resolve()
  }

  async launch({ sandbox, timeoutMs }: HarnessLaunch, signal: AbortSignal): Promise<ProcessEnd> {
    const { time, chaos } = this.#around
    const { executionId, fate } = sandbox as Box
    if (fate.launchFails) {
      chaos.count('launch-failed')
      throw new GyreError('it does not start', { boundary: 'harness', code: 'E_HARNESS_LAUNCH' })
    }
    const sinceMs = time.now()
    const stop = new AbortController()
    const cancelTimeout = time.after(timeoutMs, () => stop.abort())
    const onSignal = (): void => stop.abort()
    signal.addEventListener('abort', onSignal)
    if (signal.aborted) stop.abort()
    try {
      const told = new Promise<'told'>((resolve) => {
        const tell = (): void => resolve('told')
        if (stop.signal.aborted) tell()
        else stop.signal.addEventListener('abort', tell)
      })
      const how = await Promise.race([this.#live(executionId, fate, stop.signal), told])
      if (how === 'told' && fate.ignoresSignalMs > 0) {
        // Deaf to SIGTERM: SIGKILL comes after a grace.
        chaos.count('signal-ignored')
        await time.sleep(fate.ignoresSignalMs)
      }
      const durationMs = time.now() - sinceMs
      if (how === 'told') {
        return { exitCode: undefined, signal: 'SIGTERM', timedOut: !signal.aborted, durationMs }
      }
      return { exitCode: how === 'exit' ? 0 : 1, signal: undefined, timedOut: false, durationMs }
    } finally {
      cancelTimeout()
      signal.removeEventListener('abort', onSignal)
    }
  }

  async #live(executionId: ExecutionId, fate: HarnessFate, stop: AbortSignal): Promise<'exit' | 'crash'> {
    const { time, chaos } = this.#around
    for (const [number, { length, toolMs }] of fate.calls.entries()) {
      try {
        await this.#forwarding.call(executionId, number, length)
      } catch {
        return 'crash'
      }
      await time.sleep(toolMs)
      if (stop.aborted) return 'crash'
      if (fate.end === 'crash') {
        chaos.count('harness-crashed')
        return 'crash'
      }
    }
    if (fate.end === 'hang') {
      chaos.count('harness-hung')
      await new Promise(() => {})
    }
    return 'exit'
  }
}

export class SimScorer implements Scorer {
  readonly name = 'sim'
  readonly #around: Surroundings
  readonly #tries = new Map<SandboxInstance, number>()

  constructor(around: Surroundings) {
    this.#around = around
  }

  async score(_task: Task, sandbox: SandboxInstance, _logFolder: string, signal: AbortSignal): Promise<Score> {
    const { time, chaos } = this.#around
    const fate = fateOf(sandbox)
    const tries = this.#tries.get(sandbox) ?? 0
    this.#tries.set(sandbox, tries + 1)
    if (fate.scoreHangs) {
      chaos.count('score-hung')
      await new Promise<void>((resolve) => {
        signal.addEventListener('abort', () => resolve())
        if (signal.aborted) resolve()
      })
      throw new GyreError('the tests were ended', { boundary: 'scorer', code: 'E_SCORER_TIMEOUT' })
    }
    await time.sleep(fate.scoreMs)
    if (tries < fate.scoreFailures) {
      chaos.count('score-failed')
      throw new GyreError('the tests did not run', { boundary: 'scorer', code: 'E_SCORER_FAILED' })
    }
    return { reward: tries % 2, parts: {} }
  }
}
