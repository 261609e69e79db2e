/** @file Reads a request body up to a limit. */
import type { IncomingMessage } from 'node:http'
import { GyreError } from '../core/errors.ts'
import { gatewayError } from './faults.ts'

/** How long the rest of a refused body is read and dropped, so that the client gets to see the refusal. [ms] */
const DRAIN_MS = 5000

/** Bodies up to this size are put together in one place, over and over: large blocks for each would leave holes. [bytes] */
const SHARED_BYTES = 16 * 2 ** 20

/**
 * @param use Takes what it needs of the body, whose bytes are not its own after it returns.
 * @throws GyreError E_GATEWAY_BODY_TOO_LARGE, E_WIRE_UNSUPPORTED, or what `use` throws.
 */
export async function readBody<T>(request: IncomingMessage, limitBytes: number, use: (body: Buffer) => T): Promise<T> {
  const encoding = request.headers['content-encoding'] ?? 'identity'
  if (encoding !== 'identity') {
    drain(request)
    throw wireError('E_WIRE_UNSUPPORTED', `content-encoding "${encoding}" is not supported: send the body as it is`)
  }
  return use(joined(await readChunks(request, limitBytes)))
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

async function readChunks(request: IncomingMessage, limitBytes: number): Promise<readonly Buffer[]> {
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
  if (size <= limitBytes) return chunks
  drain(request)
  throw gatewayError(
    'E_GATEWAY_BODY_TOO_LARGE',
    `the request body is over the limit of ${limitBytes} bytes: shorten the history, or raise the gateway's body limit`,
  )
}

let shared = Buffer.alloc(0)

function joined(chunks: readonly Buffer[]): Buffer {
  const [first] = chunks
  if (chunks.length === 1 && first !== undefined) return first
  const size = chunks.reduce((sum, chunk) => sum + chunk.length, 0)
  if (size > SHARED_BYTES) return Buffer.concat(chunks)
  if (size > shared.length) shared = Buffer.allocUnsafeSlow(Math.min(SHARED_BYTES, size * 2))
  let at = 0
  for (const chunk of chunks) at += chunk.copy(shared, at)
  return shared.subarray(0, size)
}

function drain(request: IncomingMessage): void {
  request.resume()
  const timer = setTimeout(() => request.destroy(), DRAIN_MS)
  request.once('close', () => clearTimeout(timer))
}

function wireError(code: 'E_WIRE_MALFORMED' | 'E_WIRE_UNSUPPORTED', message: string): GyreError {
  return new GyreError(message, { boundary: 'wire', code })
}
