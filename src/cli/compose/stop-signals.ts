export interface StopSignals {
  readonly signal: AbortSignal
  /** Takes the handlers off again. */
  off(): void
}

/** The first SIGINT or SIGTERM stops in order; the second one ends the process. */
export function stopOnSignals(onStop: (name: NodeJS.Signals) => void): StopSignals {
  const controller = new AbortController()
  const onSignal = (name: NodeJS.Signals): void => {
    if (controller.signal.aborted) process.exit(130)
    onStop(name)
    controller.abort()
  }
  process.on('SIGINT', onSignal)
  process.on('SIGTERM', onSignal)
  return {
    signal: controller.signal,
    off: () => {
      process.off('SIGINT', onSignal)
      process.off('SIGTERM', onSignal)
    },
  }
}
