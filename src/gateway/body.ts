/** @file Reads a request body up to a limit. */
import type { IncomingMessage } from 'node:http'
import { GyreError } from '../core/errors.ts'
import { gatewayError } from './faults.ts'

/** How long the rest of a refused body is read and dropped, so that the client gets to see the refusal. [ms] */
const DRAIN_MS = 5000

/** @throws GyreError E_GATEWAY_BODY_TOO_LARGE, E_WIRE_UNSUPPORTED. */
export async function readBody(request: IncomingMessage, limitBytes: number): Promise<Buffer> {
  const encoding = request.headers['content-encoding'] ?? 'identity'
  if (encoding !== 'identity') {
    drain(request)
    throw wireError('E_WIRE_UNSUPPORTED', `content-encoding "${encoding}" is not supported: send the body as it is`)
  }
  return readBytes(request, limitBytes)
}

/** @throws GyreError E_WIRE_MALFORMED. */
export function parseJson(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8')) as unknown
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    throw wireError('E_WIRE_MALFORMED', `the request body is not JSON: ${why}`)
  }
}

async function readBytes(request: IncomingMessage, limitBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = Number(request.headers['content-length'] ?? 0)
  if (size <= limitBytes) {
    size = 0
    for await (const chunk of request.iterator({ destroyOnReturn: false })) {
      size += (chunk as Buffer).length
      if (size > limitBytes) break
      chunks.push(chunk as Buffer)
    }
  }
  if (size <= limitBytes) return Buffer.concat(chunks)
  drain(request)
  throw gatewayError(
    'E_GATEWAY_BODY_TOO_LARGE',
    `the request body is over the limit of ${limitBytes} bytes: shorten the history, or raise the gateway's body limit`,
  )
}

function drain(request: IncomingMessage): void {
  request.resume()
  const timer = setTimeout(() => request.destroy(), DRAIN_MS)
  request.once('close', () => clearTimeout(timer))
}

function wireError(code: 'E_WIRE_MALFORMED' | 'E_WIRE_UNSUPPORTED', message: string): GyreError {
  return new GyreError(message, { boundary: 'wire', code })
}
