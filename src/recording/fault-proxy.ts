/** @file Stands between a harness and the gateway, and breaks the exchanges a scenario names. */
import { createServer, request as httpRequest } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { routeOf } from './route.ts'
import type { ScenarioFault } from './scenario.ts'

export interface FaultProxy {
  /** Without a trailing slash. */
  readonly url: string
  /** Arrivals whose fault has happened. */
  readonly happened: ReadonlySet<number>
  close(): Promise<void>
}

/** Listens on loopback. Requests that ask for an answer are counted by arrival, from 0; everything else passes. */
export async function startFaultProxy(target: string, faults: readonly ScenarioFault[]): Promise<FaultProxy> {
  const byArrival = new Map(faults.map((fault) => [fault.arrival, fault]))
  const happened = new Set<number>()
  let arrivals = 0
  const server = createServer({ requestTimeout: 0 }, (request, response) => {
    const fault = isGenerate(request) ? byArrival.get(arrivals++) : undefined
    if (fault !== undefined) happened.add(fault.arrival)
    if (fault?.kind === 'delay') setTimeout(() => pass(target, request, response, undefined), fault.ms)
    else pass(target, request, response, fault)
  })
  server.timeout = 0
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    happened,
    close: async () => {
      const closed = new Promise<void>((resolve) => {
        server.close(() => resolve())
      })
      server.closeAllConnections()
      await closed
    },
  }
}

function isGenerate({ url = '/', headers }: IncomingMessage): boolean {
  return routeOf(url.replace(/^\/x\/[^/]+/, ''), headers)?.verb === 'generate'
}

function pass(
  target: string,
  request: IncomingMessage,
  response: ServerResponse,
  fault: ScenarioFault | undefined,
): void {
  const { method, headers, url = '/' } = request
  const upstream = httpRequest(`${target}${url}`, { method, headers, agent: false })
  const cut = (): void => {
    request.socket.destroy()
    upstream.destroy()
  }
  response.once('close', () => {
    if (!response.writableFinished) upstream.destroy()
  })
  upstream.once('error', () => request.socket.destroy())
  upstream.once('response', (answer) => {
    // A client that is to lose the whole answer must not see its head either.
    if (fault?.kind === 'lost-response') {
      answer.resume()
      answer.once('end', cut)
      return
    }
    response.writeHead(answer.statusCode ?? 502, answer.headers)
    relay(answer, response, fault?.kind === 'cut-after-bytes' ? fault.bytes : Infinity, cut)
  })
  request.pipe(upstream)
}

function relay(answer: IncomingMessage, response: ServerResponse, bytes: number, cut: () => void): void {
  let left = bytes
  answer.on('data', (chunk: Buffer) => {
    if (left <= 0) return
    const part = chunk.subarray(0, left)
    left -= part.length
    response.write(part, () => {
      if (left <= 0) cut()
    })
  })
  answer.once('end', () => response.end())
}
