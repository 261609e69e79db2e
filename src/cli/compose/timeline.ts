/** @file The elastic loop as a timeline for ui.perfetto.dev: what each cell was when, executions, the water level. */
import type { ExecutionId } from '../../core/ids.ts'
import type { ControllerEvent } from '../../run/controller-types.ts'
import { openTrace, type TraceWriter } from '../../telemetry/trace.ts'

interface Since {
  readonly name: string
  readonly atMs: number
}

export class Timeline {
  readonly #trace: TraceWriter
  readonly #phases: (Since | undefined)[] = []
  readonly #executions = new Map<ExecutionId, number>()
  #waterLevel: number | undefined

  constructor(path: string) {
    this.#trace = openTrace(path)
  }

  see(event: ControllerEvent): void {
    const { atMs, snapshot } = event
    for (const [index, cell] of snapshot.cells.entries()) this.#phase(index, cell.phase, atMs)
    if (snapshot.waterLevel !== this.#waterLevel) {
      this.#waterLevel = snapshot.waterLevel
      this.#trace.counter('unfinished executions', atMs, snapshot.waterLevel)
      this.#trace.counter('rollout capacity', atMs, snapshot.capacity)
    }
    if (event.kind === 'execution-started') this.#executions.set(event.executionId, atMs)
    if (event.kind !== 'execution-finished') return
    const startMs = this.#executions.get(event.executionId)
    this.#executions.delete(event.executionId)
    if (startMs === undefined) return
    const facts = { how: event.how }
    this.#trace.span(event.executionId, { name: event.executionId, startMs, durationMs: atMs - startMs, facts })
  }

  close(atMs: number): void {
    for (const index of this.#phases.keys()) this.#phase(index, '', atMs)
    this.#trace.close()
  }

  #phase(index: number, name: string, atMs: number): void {
    const since = this.#phases[index]
    if (since?.name === name) return
    if (since !== undefined) {
      const durationMs = atMs - since.atMs
      this.#trace.slice({ track: `cell ${index}`, name: since.name, startMs: since.atMs, durationMs })
    }
    this.#phases[index] = { name, atMs }
  }
}
