import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'

/** Longest path of a Unix socket on Linux. [bytes] */
const MAX_PATH = 107

/** The one way out of a sandbox: a Unix socket whose connections lead to the gateway and nowhere else. */
export class GatewaySocket {
  readonly path: string
  readonly #server: Server
  readonly #open = new Set<Socket>()

  private constructor(path: string, host: string, port: number) {
    this.path = path
    this.#server = createServer((inside) => {
      const outside = connect(port, host)
      for (const [one, other] of [
        [inside, outside],
        [outside, inside],
      ] as const) {
        this.#open.add(one)
        one.on('error', () => other.destroy())
        one.on('close', () => this.#open.delete(one))
        one.pipe(other)
      }
    })
  }

  /** @throws Error when the path is too long for a socket, or the URL is not plain HTTP. */
  static async open(path: string, gatewayUrl: string): Promise<GatewaySocket> {
    const url = new URL(gatewayUrl)
    if (url.protocol !== 'http:') throw new Error(`the gateway's URL ${gatewayUrl} must be plain http`)
    if (Buffer.byteLength(path) > MAX_PATH) {
      throw new Error(`the path ${path} is too long for a socket: set TMPDIR to a shorter folder`)
    }
    const socket = new GatewaySocket(path, url.hostname.replace(/^\[|\]$/g, ''), Number(url.port || 80))
    socket.#server.listen(path)
    await once(socket.#server, 'listening')
    socket.#server.unref()
    return socket
  }

  close(): void {
    this.#server.close()
    for (const one of this.#open) one.destroy()
  }
}
