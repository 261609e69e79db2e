/** @file Picks the adapters a config names. */
import { join } from 'node:path'
import { CommandHarness } from '../../adapters/harness/command/command-harness.ts'
import { PackagedHarness } from '../../adapters/harness/packaged/packaged-harness.ts'
import { harnessRecipe } from '../../adapters/harness/packaged/recipes.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../../adapters/sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../../adapters/sandbox/process/process-sandbox.ts'
import { loadTasks } from '../../adapters/tasks/harbor/load-tasks.ts'
import { trailTasks } from '../../adapters/tasks/trail/trail.ts'
import { writeTrailTasks } from '../../adapters/tasks/trail/write.ts'
import { absolutePath, type RunConfig } from '../../config/resolve.ts'
import { GyreError, invariant } from '../../core/errors.ts'
import type { Harness } from '../../ports/harness.ts'
import type { Sandbox } from '../../ports/sandbox.ts'
import type { Task } from '../../ports/task.ts'
import type { ExecutionSettings } from '../../run/execution.ts'
import { runProfile } from './run-profile.ts'

/** Name under which the policy is served. */
export const MODEL_NAME = 'gyre-policy'

export function composeHarness(config: RunConfig, home: string): Harness {
  const { name, version, args, argv, env } = config.harness
  if (name === 'command') return new CommandHarness({ argv: [...argv, ...args], env })
  const cacheFolder = join(absolutePath(config.paths.cache, process.cwd(), home), 'harness')
  const recipe = harnessRecipe(name)
  invariant(recipe !== undefined, `there is a recipe for harness ${name}`)
  return new PackagedHarness(recipe, { version, cacheFolder, extraArgs: args, env })
}

/** @returns the sandbox, and one sentence on what it gives and why it was chosen. */
export async function composeSandbox(
  config: RunConfig,
): Promise<{ readonly sandbox: Sandbox; readonly because: string }> {
  const { kind } = config.sandbox
  if (kind === 'process') return { sandbox: new ProcessSandbox(), because: 'sandbox process: as the run file says' }
  const probe = await probeBubblewrap()
  if (probe.works) {
    return {
      sandbox: new BubblewrapSandbox(),
      because: 'sandbox bubblewrap: no network but the gateway, read-only system',
    }
  }
  if (kind === 'bubblewrap') {
    throw new GyreError(`sandbox bubblewrap cannot be used here: ${probe.reason}; or set sandbox.kind=process`, {
      boundary: 'sandbox',
      code: 'E_SANDBOX_UNAVAILABLE',
    })
  }
  return { sandbox: new ProcessSandbox(), because: `sandbox process: bubblewrap cannot be used (${probe.reason})` }
}

export interface TaskSets {
  readonly train: readonly Task[]
  readonly heldOut: readonly Task[]
}

/** Loads the two folders, or writes the generated family below `folder` first. */
export async function composeTasks(config: RunConfig, folder: string): Promise<TaskSets> {
  const { train, heldOut, generate } = config.tasks
  if (generate === undefined) {
    return { train: await loadTasks(train ?? ''), heldOut: heldOut === undefined ? [] : await loadTasks(heldOut) }
  }
  const { minStops, maxStops, fillerLines } = generate
  const write = async (split: 'train' | 'held-out', count: number): Promise<readonly Task[]> => {
    const root = join(folder, split)
    writeTrailTasks(trailTasks({ seed: config.seed, split, count, minStops, maxStops, fillerLines }), root)
    return loadTasks(root)
  }
  return { train: await write('train', generate.train), heldOut: await write('held-out', generate.heldOut) }
}

/** @throws GyreError E_CONFIG_* when the harness profile of the run file cannot be used. */
export function executionSettings(config: RunConfig, temperature: number): ExecutionSettings {
  const { rollout, sandbox, harness, policy } = config
  return {
    profile: runProfile(config),
    model: MODEL_NAME,
    contextWindow: policy.model.context,
    maxOutputTokens: rollout.maxTokens,
    maxCalls: rollout.maxCalls,
    temperature,
    topP: rollout.topP,
    topK: rollout.topK,
    limits: { memoryBytes: sandbox.memoryBytes, fileBytes: sandbox.fileBytes, processes: sandbox.processes },
    harnessTimeoutMs: harness.timeoutMs,
    overallTimeoutMs: rollout.overallTimeoutMs,
    evaluationRetries: rollout.evaluationRetries,
    keepWorkspace: sandbox.keep,
  }
}
