/** @file The least a proxy can do: pass bytes on, both ways. */
import { Agent, createServer, request as ask } from 'node:http'
import type { AddressInfo } from 'node:net'
import { usage } from './usage.ts'

const agent = new Agent({ keepAlive: true, maxSockets: Infinity })
const enginePort = Number(process.argv[2])

const server = createServer({ keepAliveTimeout: 600_000, requestTimeout: 0 }, (request, response) => {
  const { method, url, headers } = request
  const upstream = ask({ agent, port: enginePort, host: '127.0.0.1', method, path: url, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 500, answer.headers)
    answer.pipe(response)
  })
  upstream.on('error', () => response.destroy())
  request.pipe(upstream)
})
server.listen(0, '127.0.0.1')

process.on('message', (question: { readonly ask: 'port' | 'usage' }) => {
  if (question.ask === 'port') process.send?.({ port: (server.address() as AddressInfo).port })
  else void usage(false).then((used) => process.send?.(used))
})
// A bench that was killed leaves nobody behind.
process.once('disconnect', () => process.exit())
