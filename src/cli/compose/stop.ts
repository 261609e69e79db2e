import { GyreError } from '../../core/errors.ts'
import type { Cleanup } from './cleanup.ts'
import type { RunProgress } from './progress.ts'

/** The first signal ends the run in order, so that it can be resumed; the second one ends the process. */
export function stopOnSignal(progress: RunProgress, cleanup: Cleanup): AbortSignal {
  const stop = new AbortController()
  const onSignal = (signal: NodeJS.Signals): void => {
    if (stop.signal.aborted) process.exit(130)
    progress.note(`${signal}: ending the run in order; once more ends it at once`)
    stop.abort(
      new GyreError('the run was stopped: go on with the same command and --resume', {
        boundary: 'trainer',
        code: 'E_TRAINER_STOPPED',
      }),
    )
  }
  process.on('SIGINT', onSignal)
  process.on('SIGTERM', onSignal)
  cleanup.add('signal handlers', () => {
    process.off('SIGINT', onSignal)
    process.off('SIGTERM', onSignal)
  })
  return stop.signal
}
