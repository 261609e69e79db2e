/** @file The rollout engines beside the cells: started or connected once, checked, and given the present weights. */
import { join } from 'node:path'
import { RolloutCells } from '../../adapters/cell/process/rollout-cells.ts'
import { servableFolder } from '../../adapters/engine/remote/servable-folder.ts'
import { standaloneSglang } from '../../adapters/engine/remote/sglang-weights.ts'
import type { RemoteStandaloneEngine } from '../../adapters/engine/remote/standalone.ts'
import { standaloneVllm } from '../../adapters/engine/remote/vllm-weights.ts'
import { checkWeights } from '../../adapters/engine/remote/weights-check.ts'
import type { RunConfig } from '../../config/resolve.ts'
import { errorText, invariant } from '../../core/errors.ts'
import { engineId } from '../../core/ids.ts'
import type { ModelShape } from '../../kernels/shape.ts'
import type { Engine, PublishedWeights, StandaloneEngine } from '../../ports/engine.ts'
import { cellProgram, engineOptions } from './cells.ts'

type Entry = RunConfig['elastic']['standalone'][number]

export interface StandalonePlan {
  readonly config: RunConfig
  readonly shape: ModelShape
  readonly logFolder: string
  readonly vocabSize: number
  readonly stop: AbortSignal
  readonly note: (text: string) => void
}

/** What each is called, in the gateway and on the display. */
export function standaloneIds(entries: readonly Pick<Entry, 'kind'>[]): readonly string[] {
  let embedded = 0
  return entries.map(({ kind }, index) => (kind === 'embedded' ? `rollout-${embedded++}` : `${kind}-${index}`))
}

/** In the order of `elastic.standalone`. */
export class StandaloneEngines {
  readonly #plan: StandalonePlan
  readonly #closers: (() => Promise<void>)[] = []
  #engines: readonly StandaloneEngine[] = []
  #serving: readonly StandaloneEngine[] = []

  constructor(plan: StandalonePlan) {
    this.#plan = plan
  }

  /** Every one; empty before the first `open`. */
  get engines(): readonly StandaloneEngine[] {
    return this.#engines
  }

  /** Those that took the weights of the last `open`. */
  get serving(): readonly StandaloneEngine[] {
    return this.#serving
  }

  /**
   * The first time every engine must come, and show that it serves these weights; later one that does not take them is
   * left out.
   * @param core an engine of the run that serves the weights now.
   * @throws GyreError E_CELL_START, E_ENGINE_PROBE, E_ENGINE_WEIGHTS, E_ENGINE_UNREACHABLE, E_ENGINE_UNAUTHORIZED.
   */
  async open(weights: PublishedWeights, core: Engine): Promise<void> {
    const { config, stop, note } = this.#plan
    if (this.#engines.length < config.elastic.standalone.length) {
      this.#engines = await this.#start(weights, core)
      this.#serving = this.#engines
      return
    }
    const taken = await Promise.all(
      this.#engines.map(async (engine) => {
        try {
          await engine.takeWeights(weights, stop)
          return [engine]
        } catch (error) {
          stop.throwIfAborted()
          note(`${engine.id} does not take policy version ${weights.policyVersion}: ${errorText(error)}`)
          return []
        }
      }),
    )
    this.#serving = taken.flat()
  }

  async close(): Promise<void> {
    await Promise.all(this.#closers.map((close) => close()))
  }

  async #start(weights: PublishedWeights, core: Engine): Promise<readonly StandaloneEngine[]> {
    const { config, stop, note } = this.#plan
    const entries = config.elastic.standalone
    const embedded = entries.filter(({ kind }) => kind === 'embedded')
    const own = embedded.length === 0 ? [] : await this.#startEmbedded(embedded)
    await Promise.all(own.map((engine) => engine.takeWeights(weights, stop)))
    const ids = standaloneIds(entries)
    let next = 0
    const engines: StandaloneEngine[] = []
    for (const [index, entry] of entries.entries()) {
      if (entry.kind === 'embedded') {
        const engine = own[next++]
        invariant(engine !== undefined, `rollout cell ${next - 1} was started`)
        engines.push(engine)
        note(`standalone engine ${engine.id}: a process of ours, ${entry.slots} slots`)
        continue
      }
      const servable = servableFolder(weights.folder)
      const engine = await this.#connect(entry, ids[index] ?? '').catch((error: unknown) => {
        note(`${ids[index]}: start the server with the folder ${servable}, then go on with --resume`)
        throw error
      })
      this.#closers.push(() => engine.close())
      const check = {
        weights,
        reference: core,
        vocabSize: this.#plan.vocabSize,
        maxContext: config.policy.model.context,
      }
      await checkWeights(engine, check, stop)
      note(`standalone engine ${engine.id}: ${engine.where}, ${entry.slots} slots, log-probs as the run's own`)
      engines.push(engine)
    }
    return engines
  }

  async #startEmbedded(entries: readonly Entry[]): Promise<readonly StandaloneEngine[]> {
    const { config, shape, logFolder } = this.#plan
    const cells = await RolloutCells.start({
      slots: entries.map(({ slots }) => slots),
      argv: cellProgram(),
      engine: (index) => {
        const { threads, slots } = entries[index] ?? { threads: 1, slots: 1 }
        // It never trains: no room for a micro-step beyond what the engine needs at least.
        return { ...engineOptions(config, shape, { threads, slots }), maxTrainTokens: 1 }
      },
      logFolder,
    })
    this.#closers.push(() => cells.close())
    return cells.engines
  }

  #connect({ kind, url, apiKey, headers, model, slots }: Entry, id: string): Promise<RemoteStandaloneEngine> {
    const options = {
      id: engineId(id),
      baseUrl: url ?? '',
      headers,
      vocabSize: this.#plan.vocabSize,
      slots,
      ...(apiKey === undefined ? {} : { apiKey }),
    }
    return kind === 'vllm'
      ? standaloneVllm({ ...options, ...(model === undefined ? {} : { model }) })
      : standaloneSglang(options)
  }
}

/** The weights of a checkpoint. @param folder of the run. */
export function weightsOf(
  checkpoint: { readonly folder: string; readonly policyVersion: number },
  folder: string,
): PublishedWeights {
  return { folder: join(folder, checkpoint.folder), policyVersion: checkpoint.policyVersion }
}
