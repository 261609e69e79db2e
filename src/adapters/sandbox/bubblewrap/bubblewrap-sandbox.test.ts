import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { executionId } from '../../../core/ids.ts'
import { makeTaskFolder, sandboxContract } from '../../../ports/sandbox.contract.ts'
import type { SandboxInstance } from '../../../ports/sandbox.ts'
import { scorerContract } from '../../../ports/scorer.contract.ts'
import { HarborScorer } from '../../scorer/harbor/harbor-scorer.ts'
import { BubblewrapSandbox, probeBubblewrap } from './bubblewrap-sandbox.ts'

const probe = await probeBubblewrap()
const make = (baseFolder: string): BubblewrapSandbox => new BubblewrapSandbox({ baseFolder, graceMs: 500 })

const reason = probe.works ? '' : ` (not tested: ${probe.reason})`

describe.skipIf(!probe.works)(`bubblewrap${reason}`, () => {
  sandboxContract('bubblewrap', {
    make,
    module: 'adapters/sandbox/bubblewrap/bubblewrap-sandbox.ts',
    className: 'BubblewrapSandbox',
  })
  scorerContract('harbor in bubblewrap', new HarborScorer(), make)
})

describe.skipIf(!probe.works)(`isolation of bubblewrap${reason}`, () => {
  let folder = ''
  let instance: SandboxInstance
  const servers: Server[] = []

  async function serve(answer: string): Promise<number> {
    const server = createServer((request, response) => response.end(`${answer} ${request.url}`))
    servers.push(server)
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
    const address = server.address()
    if (address === null || typeof address === 'string') throw new Error('no port')
    return address.port
  }

  async function open(gatewayUrl: string): Promise<SandboxInstance> {
    return make(join(folder, 'base')).create({
      executionId: executionId('isolated'),
      task: makeTaskFolder(folder),
      executionFolder: folder,
      limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
      gatewayUrl,
      readOnlyFolders: [],
    })
  }

  async function run(argv: readonly string[]): Promise<string> {
    const logs = mkdtempSync(join(folder, 'logs-'))
    const spec = { env: {}, timeoutMs: 20_000, stdoutFile: join(logs, 'out'), stderrFile: join(logs, 'err') }
    await instance.run({ ...spec, argv }, new AbortController().signal)
    return readFileSync(join(logs, 'out'), 'utf8').trim() + readFileSync(join(logs, 'err'), 'utf8').trim()
  }
  const sh = (script: string): Promise<string> => run(['/bin/sh', '-c', script])
  const fetchText = (url: string): Promise<string> =>
    run([
      'node',
      '-e',
      `fetch('${url}').then(async (r) => console.log(await r.text()), (e) => console.log('failed', e.cause.code))`,
    ])

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'gyre-isolation-'))
  })
  afterEach(() => instance.destroy())
  afterAll(() => {
    servers.forEach((server) => server.close())
    rmSync(folder, { recursive: true, force: true })
  })

  test('lets the gateway be reached, and nothing else of the host', async () => {
    const gateway = await serve('gateway')
    const other = await serve('other')
    instance = await open(`http://127.0.0.1:${gateway}/base/`)
    expect(await fetchText(`${instance.gatewayUrl}/x/1`)).toBe('gateway /base/x/1')
    expect(await fetchText(`http://127.0.0.1:${other}/`)).toBe('failed ECONNREFUSED')
    expect(await fetchText(`http://127.0.0.1:${gateway}/`)).toBe('failed ECONNREFUSED')
    expect(await sh(`sed -n 's/^ *\\([a-z0-9]*\\):.*/\\1/p' /proc/net/dev`)).toBe('lo')
  })

  test('hides the task, the home and the temp folder of the host, and keeps the system read-only', async () => {
    instance = await open('http://127.0.0.1:9')
    expect(
      await sh(`ls -d "${folder}" "${process.env['HOME'] ?? '/root'}"/.[a-z]* /etc/shadow /var 2>/dev/null | wc -l`),
    ).toBe('0')
    expect(
      await sh('touch /usr/x /etc/x /x /run/x 2>/dev/null || echo none; ls /usr/x /etc/x /x /run/x 2>/dev/null'),
    ).toBe('none')
    expect(await sh('ls /')).not.toContain('tests')
  })

  test('shows the same paths in every execution, and no process of the host', async () => {
    instance = await open('http://127.0.0.1:9')
    expect(instance).toMatchObject({ workspace: '/workspace', home: '/home/agent', verifierLogs: '/logs/verifier' })
    expect(await sh('pwd; echo $HOME')).toBe('/workspace\n/home/agent')
    const pids = await sh('ls /proc | grep -c "^[0-9]"')
    expect(Number(pids)).toBeLessThan(10)
  })

  test('reports the signal that ended the program', async () => {
    instance = await open('http://127.0.0.1:9')
    const logs = mkdtempSync(join(folder, 'logs-'))
    const end = await instance.run(
      {
        argv: ['/bin/sh', '-c', 'kill -SEGV $$'],
        env: {},
        timeoutMs: 20_000,
        stdoutFile: join(logs, 'out'),
        stderrFile: join(logs, 'err'),
      },
      new AbortController().signal,
    )
    expect(end).toMatchObject({ exitCode: undefined, signal: 'SIGSEGV', timedOut: false })
  })
})
