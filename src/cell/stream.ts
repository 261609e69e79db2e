/** @file A generation as a stream of lines, with heartbeats, and its end when the caller leaves. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import type { AdmittedGeneration } from './admission.ts'
import { encodeEvent, encodeFailure } from './generate-codec.ts'
import { CONTENT, HEARTBEAT_MS } from './protocol.ts'
import { toWireError } from './wire-errors.ts'

/**
 * Starts a generation and writes its events. An error before admission is thrown; one after it becomes
 * the last line. A caller that goes away aborts `signal`, and so does the end of its connection.
 */
export async function streamGeneration(
  response: ServerResponse,
  start: (signal: AbortSignal) => AdmittedGeneration,
  onFailure: (error: unknown) => void,
): Promise<void> {
  const gone = new AbortController()
  response.once('close', () => gone.abort())
  const { events, cancelled } = start(gone.signal)
  response.writeHead(200, { 'content-type': CONTENT.lines })
  response.flushHeaders()
  // An engine may be silent for long; an empty line tells a slow cell from a dead one.
  const heartbeat = setInterval(() => response.write('\n'), HEARTBEAT_MS)
  try {
    for await (const event of events) {
      if (response.write(encodeEvent(event))) continue
      // A reader that stalls holds back its own generation only, and not beyond a cancellation.
      await once(response, 'drain', { signal: cancelled }).catch(() => undefined)
    }
  } catch (error) {
    onFailure(error)
    if (!response.destroyed) response.write(encodeFailure(toWireError(error)))
  } finally {
    clearInterval(heartbeat)
    response.end()
  }
}
