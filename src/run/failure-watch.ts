/** @file Notices that a run cannot work at all, before it burns its budget. */
import type { GyreError } from '../core/errors.ts'
import type { ExecutionReport } from './execution.ts'

/** Executions in a row without one model call before the run gives up, as long as none ever made one. */
const SILENT_LIMIT = 4

/**
 * A harness with a wrong base URL ends every execution without a call and "succeeds". One such execution is
 * excluded; when the first ones are all like that, the run ends with the reason instead of training on nothing.
 */
export class FailureWatch {
  #everCalled = false
  #silent = 0

  /** @returns why the run has to end, or undefined. */
  see(report: ExecutionReport): GyreError | undefined {
    if (report.modelCalls > 0) {
      this.#everCalled = true
      return undefined
    }
    if (this.#everCalled || report.error === undefined || report.outcome === 'cut') return undefined
    this.#silent++
    return this.#silent < SILENT_LIMIT ? undefined : report.error
  }
}
