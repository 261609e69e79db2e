import { createDisplay, type Display } from '../../telemetry/display.ts'
import type { CliContext } from '../context.ts'
import { monotonicClock } from '../../host/clock.ts'

/** A live panel on a terminal, plain lines in a pipe, JSON lines on request. */
export function openDisplay(json: boolean, context: CliContext): Display {
  return createDisplay({
    kind: json ? 'json' : context.isTty ? 'panel' : 'plain',
    write: (text) => process.stdout.write(text),
    width: context.width,
    clock: monotonicClock,
    paint: context.colors,
  })
}
