/**
 * @file Who may generate on a cell, and what runs.
 *
 * A cell starts closed (mode `training`): its weights are not known to be those of the run until its
 * owner loads or pulls them and calls enterRollout.
 */
import { GyreError } from '../core/errors.ts'
import type { CellMode } from '../ports/cell.ts'
import type { GenerateEvent } from '../ports/engine.ts'
import type { Deadline } from './deadline.ts'

type Generate = (signal: AbortSignal) => AsyncIterable<GenerateEvent>

export interface AdmittedGeneration {
  /** The caller must iterate it to its end, or return it. */
  readonly events: AsyncGenerator<GenerateEvent, void, undefined>
  /** Aborts when the generation is to end early, whoever wants it. */
  readonly cancelled: AbortSignal
}

export class Admission {
  #mode: CellMode = 'training'
  readonly #running = new Set<AbortController>()
  #whenIdle: (() => void)[] = []

  get mode(): CellMode {
    return this.#mode
  }

  /** Generations that run. */
  get running(): number {
    return this.#running.size
  }

  open(): void {
    this.#mode = 'rollout'
  }

  /** Refuses new generations, cancels those that run, and returns once none does. */
  async drain(deadline: Deadline): Promise<void> {
    this.#mode = 'training'
    for (const controller of this.#running) controller.abort(cancelled('the cell left rollout'))
    if (this.#running.size === 0) return
    await deadline.wait(new Promise<void>((resolve) => this.#whenIdle.push(resolve)))
  }

  /**
   * Admits one generation at once.
   * @throws GyreError E_CELL_NOT_ADMITTING
   */
  run(generate: Generate, signal: AbortSignal, deadline: Deadline): AdmittedGeneration {
    if (this.#mode !== 'rollout') {
      throw new GyreError('the cell is in training and admits no generation: send it to another engine', {
        boundary: 'cell',
        code: 'E_CELL_NOT_ADMITTING',
        retryable: true,
      })
    }
    const controller = new AbortController()
    this.#running.add(controller)
    return { events: this.#stream(generate, controller, signal, deadline), cancelled: controller.signal }
  }

  async *#stream(
    generate: Generate,
    controller: AbortController,
    outer: AbortSignal,
    deadline: Deadline,
  ): AsyncGenerator<GenerateEvent, void, undefined> {
    const leave = (): void => controller.abort(cancelled('the caller went away'))
    const timer = setTimeout(() => controller.abort(deadline.error(true)), deadline.remainingMs())
    outer.addEventListener('abort', leave)
    if (outer.aborted) leave()
    try {
      let hasEnded = false
      for await (const event of generate(controller.signal)) {
        hasEnded ||= event.kind === 'end'
        yield event
      }
      if (!hasEnded) throw unfinished()
    } catch (error) {
      throw controller.signal.aborted ? (controller.signal.reason as Error) : error
    } finally {
      clearTimeout(timer)
      outer.removeEventListener('abort', leave)
      this.#running.delete(controller)
      if (this.#running.size === 0) for (const resolve of this.#whenIdle.splice(0)) resolve()
    }
  }
}

function cancelled(why: string): GyreError {
  return new GyreError(`the generation was cancelled: ${why}`, {
    boundary: 'engine',
    code: 'E_ENGINE_CANCELLED',
    retryable: true,
  })
}

function unfinished(): GyreError {
  return new GyreError('the engine ended a generation without an end event', {
    boundary: 'engine',
    code: 'E_ENGINE_UNFINISHED',
    retryable: true,
  })
}
