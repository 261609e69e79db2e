/** @file `gyre eval`: the reward of a run's newest checkpoint on the held-out tasks. */
import { loadConfig } from '../config/load.ts'
import { nothingScored } from '../run/run.ts'
import { assemble, evaluateHeldOut, openForRollout } from './compose/assemble.ts'
import { Cleanup } from './compose/cleanup.ts'
import { openDisplay } from './compose/display.ts'
import { openRunFolder } from './compose/run-files.ts'
import type { CliContext } from './context.ts'

export async function evaluateRun(
  file: string,
  overrides: readonly string[],
  options: { readonly json?: true },
  context: CliContext,
): Promise<void> {
  const { config } = loadConfig(file, overrides, context)
  const files = openRunFolder({ folder: config.runFolder, resolvedYaml: undefined, resume: true, fresh: false })
  const display = openDisplay(options.json === true, context)
  const cleanup = new Cleanup((text) => context.warn(text))
  cleanup.add('the run folder', files.release)
  cleanup.add('the display', () => display.end())
  try {
    const assembly = await assemble({ config, files, display, cleanup, home: context.home })
    await openForRollout(assembly)
    const step = assembly.store.latestCheckpoint()?.step ?? 0
    const result = await evaluateHeldOut(assembly, `eval-step-${step}`)
    if (result.scored === 0) throw nothingScored(result)
    const { reward, scored, excluded, modelCalls } = result
    if (options.json === true) {
      context.print(
        JSON.stringify({ kind: 'evaluation', run: config.name, step, reward, scored, excluded, modelCalls }),
      )
    } else {
      context.print(`${config.name}, checkpoint of step ${step}: reward ${reward.toFixed(3)} over ${scored} executions`)
    }
  } finally {
    await cleanup.close()
  }
}
