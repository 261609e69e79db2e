/** @file A public proxy beside ours: LiteLLM with one worker, in front of the same engine. */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { dirname, join } from 'node:path'
import type { Target } from './client.ts'

const START_MS = 120_000
/** Clock ticks a second that /proc counts in. */
const TICKS = 100

interface Peer {
  readonly name: string
  readonly target: () => Target
  readonly cpuMs: () => Promise<number>
  [Symbol.dispose](): void
}

/** @param python of an environment that has `litellm[proxy]`. */
export async function startPeer(python: string, enginePort: number, folder: string): Promise<Peer> {
  const config = join(folder, 'litellm.yaml')
  const engine = { model: 'openai/policy', api_base: `http://127.0.0.1:${enginePort}/v1`, api_key: 'none' }
  writeFileSync(config, JSON.stringify({ model_list: [{ model_name: 'policy', litellm_params: engine }] }))
  const port = await freePort()
  const apiKey = `sk-${randomBytes(32).toString('hex')}`
  const child = spawn(
    python,
    [join(dirname(python), 'litellm'), '--config', config, '--port', String(port), '--host', '127.0.0.1'],
    {
      stdio: ['ignore', 'ignore', 'inherit'],
      env: { ...process.env, LITELLM_LOCAL_MODEL_COST_MAP: 'True', LITELLM_LOG: 'ERROR', LITELLM_MASTER_KEY: apiKey },
    },
  )
  const baseUrl = `http://127.0.0.1:${port}`
  for (const end = Date.now() + START_MS; ;) {
    const isUp = await fetch(`${baseUrl}/health/liveliness`).then(
      ({ ok }) => ok,
      () => false,
    )
    if (isUp) break
    if (Date.now() > end || child.exitCode !== null) throw new Error('the peer did not start')
    await new Promise((resolve) => setTimeout(resolve, 500))
  }
  return {
    name: 'litellm',
    target: () => ({ baseUrl, apiKey }),
    cpuMs: () => Promise.resolve(cpuMsOf(child.pid ?? 0)),
    [Symbol.dispose]: () => void child.kill('SIGKILL'),
  }
}

/** User and system time of the process with all its threads. [ms] */
function cpuMsOf(pid: number): number {
  const [, fields = ''] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')
  const [user = 0, kernel = 0] = fields.split(' ').slice(11, 13).map(Number)
  return ((user + kernel) * 1000) / TICKS
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}
