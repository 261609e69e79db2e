/** @file Engines that make it hard for a session: they die in mid-stream, or say nothing for long. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { OpenedSession, ScenarioOptions } from '../../src/cli/compose/scenario-session.ts'
import { GyreError } from '../../src/core/errors.ts'
import { engineId } from '../../src/core/ids.ts'
import type { Engine, GenerateEvent, GenerateRequest } from '../../src/ports/engine.ts'

/** Events a generation gets on one engine before it is moved away. */
const EVENTS_PER_LEG = 2

/**
 * Serves the session on engines `a` and `b` in turn. Each generation is cut on its engine after a few events: once
 * because the engine dies, once because it is asked to leave; what is left goes on at the other one.
 */
export function moving(): (opened: OpenedSession) => void {
  return ({ gateway, executionId, engine }) => {
    let epoch = 1
    let serving = 'a'
    const place = (name: string): void => gateway.setEngine(leaving(name, engine, () => leave(name)))
    const leave = (name: string): boolean => {
      if (name !== serving) return true
      serving = name === 'a' ? 'b' : 'a'
      place(serving)
      gateway.setRoutes([{ executionId, engineId: engineId(serving), routeEpoch: ++epoch }])
      const dies = epoch % 2 === 0
      if (dies) gateway.removeEngine(engineId(name))
      else void gateway.cancelInFlight(engineId(name))
      return dies
    }
    place('a')
    gateway.setRoutes([{ executionId, engineId: engineId('a'), routeEpoch: epoch }])
  }
}

/** @param leave Moves everything away; true when this engine is dead from now on. */
function leaving(name: string, engine: Engine, leave: () => boolean): Engine {
  return {
    id: engineId(name),
    async *generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
      let events = 0
      for await (const event of engine.generate(request, signal)) {
        if (events++ === EVENTS_PER_LEG && leave()) throw died()
        yield event
        await sleep(2)
      }
    },
  }
}

/** An engine that says nothing for so long before the first token of each generation, and once more in its middle. [ms] */
export function silent(ms: number): Pick<ScenarioOptions, 'wrapEngine'> {
  return {
    wrapEngine: (engine) => ({
      id: engine.id,
      async *generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
        let events = 0
        for await (const event of engine.generate(request, signal)) {
          if (events === 0 || events === EVENTS_PER_LEG) await sleep(ms, undefined, { signal })
          events++
          yield event
        }
      },
    }),
  }
}

function died(): GyreError {
  return new GyreError('the engine died', { boundary: 'engine', code: 'E_ENGINE_UNREACHABLE', retryable: true })
}
