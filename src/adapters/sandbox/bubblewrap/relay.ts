/**
 * @file Runs inside the sandbox, which has a network of its own with nothing in it: opens a loopback port, carries its
 * connections over a Unix socket to the gateway outside, and starts the program once the port is open.
 *
 * `node relay.mjs PORT SOCKET PROGRAM ARGUMENTS...`; ends as the program ends.
 */
import { spawn } from 'node:child_process'
import { connect, createServer } from 'node:net'

const [port = '', socketPath = '', program = '', ...args] = process.argv.slice(2)

const server = createServer((inside) => {
  const outside = connect(socketPath)
  inside.on('error', () => outside.destroy())
  outside.on('error', () => inside.destroy())
  inside.pipe(outside)
  outside.pipe(inside)
})

// The supervisor signals every process of the sandbox by itself; this one stays until the program has ended.
const stay = (): void => undefined
process.on('SIGTERM', stay)

server.listen(Number(port), '127.0.0.1', () => {
  const child = spawn(program, args, { stdio: 'inherit' })
  child.on('error', (error) => {
    process.stderr.write(`bwrap: ${error.message}\n`)
    process.exit(1)
  })
  child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1)
    process.off('SIGTERM', stay)
    process.kill(process.pid, signal)
  })
})
