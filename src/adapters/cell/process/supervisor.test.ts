import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { startBigramCells } from '../../../../test/support/cells.ts'
import { ADAM, CROSS_ENTROPY, collect, demonstration, generation, tokensOf } from '../../../ports/cell.contract.ts'
import type { GenerateEvent } from '../../../ports/engine.ts'
import type { ProcessCell } from './process-cell.ts'
import { createRuntimeFolder, socketPath, sweepRuntimeFolders } from './runtime-folder.ts'
import { CellProcessSupervisor } from './supervisor.ts'

const cleanups: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

type Started = Awaited<ReturnType<typeof startBigramCells>>
async function start(...args: Parameters<typeof startBigramCells>): Promise<Started> {
  const started = await startBigramCells(...args)
  cleanups.push(() => started.close())
  return started
}
const cellOf = ({ supervisor }: Started, index: number): ProcessCell => supervisor.cells[index] as ProcessCell
const never = (): AbortSignal => new AbortController().signal

/** False for a zombie, which only waits for its parent to notice. */
function isRunning(pid: number): boolean {
  try {
    return !execFileSync('ps', ['-o', 'stat=', '-p', String(pid)], { encoding: 'utf8' }).startsWith('Z')
  } catch {
    return false
  }
}
function kill(started: Started, index: number, signal: NodeJS.Signals): number {
  const pid = started.supervisor.pidOf(index)
  if (pid === undefined) throw new Error(`cell ${index} has no process`)
  process.kill(pid, signal)
  return pid
}

test('kill -9 of a cell in rollout loses its generations as unreachable, and a restart makes it usable', async () => {
  const started = await start(2, { vocabSize: 8, tokenDelayMs: 1 })
  const [victim, other] = [cellOf(started, 1), cellOf(started, 0)]
  await victim.enterRollout(5)
  const died = new Promise<number>((yes) => started.supervisor.onDeath(yes))
  const seen: GenerateEvent[] = []
  const failure = (async () => {
    for await (const event of victim.generate(generation([1], 4000), never())) {
      if (seen.push(event) === 3) kill(started, 1, 'SIGKILL')
    }
  })().catch((error: unknown) => error)
  expect(await failure).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retryable: true })
  expect(tokensOf(seen).ids.length).toBeGreaterThanOrEqual(3)
  expect(await died).toBe(1)
  expect(started.supervisor.pidOf(1)).toBeUndefined()
  await expect(victim.hello()).rejects.toMatchObject({ code: 'E_CELL_UNREACHABLE', retryable: true })

  await started.supervisor.restart(1)
  await victim.pullWeights(6, other.address, 4)
  await victim.enterRollout(6)
  expect(tokensOf(await collect(victim.generate(generation([1], 5), never()))).versions).toEqual([4, 4, 4, 4, 4])
})

test('kill -9 of a cell in training fails its call as unreachable, and it comes back from a checkpoint', async () => {
  const started = await start(1, { vocabSize: 8, stepDelayMs: 200 })
  const cell = cellOf(started, 0)
  await cell.saveCheckpoint(1, started.folder)
  const step = cell.forwardBackward(1, 'k', demonstration([1, 2, 3]), CROSS_ENTROPY).catch((error: unknown) => error)
  await new Promise((yes) => setTimeout(yes, 50))
  kill(started, 0, 'SIGKILL')
  await expect.poll(() => started.supervisor.pidOf(0)).toBeUndefined()
  expect(await new Promise((yes) => started.supervisor.onDeath(yes))).toBe(0)
  expect(await step).toMatchObject({ code: 'E_CELL_UNREACHABLE', retryable: true })
  await started.supervisor.restart(0)
  await cell.loadCheckpoint(1, started.folder, 8)
  expect((await cell.hello()).policyVersion).toBe(8)
  await cell.forwardBackward(1, 'k', demonstration([1, 2, 3]), CROSS_ENTROPY)
  expect((await cell.optimizerStep(1, 'k', ADAM)).gradientNorm).toBeGreaterThan(0)
})

test('a frozen cell is told from a slow one: streams end by silence, calls by their deadline', async () => {
  const started = await start(
    1,
    { vocabSize: 8, tokenDelayMs: 1 },
    { graceMs: 200, deadlines: { silence: 400, control: 100 } },
  )
  const cell = cellOf(started, 0)
  await cell.enterRollout(1)
  let count = 0
  const failure = (async () => {
    for await (const _ of cell.generate(generation([1], 4000), never())) {
      if (++count === 3) kill(started, 0, 'SIGSTOP')
    }
  })().catch((error: unknown) => error)
  expect(await failure).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retryable: true })
  await expect(cell.hello()).rejects.toMatchObject({ code: 'E_CELL_TIMEOUT', retryable: true })
})

test('closing ends every process, removes the sockets, and is idempotent', async () => {
  const started = await start(2, { vocabSize: 8 })
  const { supervisor } = started
  const folder = dirname(cellOf(started, 0).address)
  expect(statSync(folder).mode & 0o777).toBe(0o700)
  let deaths = 0
  supervisor.onDeath(() => (deaths += 1))
  const pids = [0, 1].map((i) => supervisor.pidOf(i) as number)
  expect(pids.every(isRunning)).toBe(true)
  await supervisor.close()
  await supervisor.close()
  expect(pids.some(isRunning)).toBe(false)
  expect(existsSync(folder)).toBe(false)
  expect(deaths).toBe(0)
  await expect(supervisor.restart(0)).rejects.toMatchObject({ code: 'E_CELL_CLOSED' })
  expect(readFileSync(join(started.folder, 'cell-1.log'), 'utf8')).toContain('cell-1 ends: SIGTERM')
})

test('a cell that ignores SIGTERM is killed after the grace', async () => {
  const started = await start(1, { vocabSize: 8 }, { graceMs: 200 })
  const pid = kill(started, 0, 'SIGSTOP')
  await started.supervisor.close()
  expect(isRunning(pid)).toBe(false)
})

test('a cell that does not start is an error with the end of its log, and leaves nothing behind', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-test-'))
  cleanups.push(() => rmSync(folder, { recursive: true }))
  const options = { count: 1, slots: 1, engine: () => null, logFolder: folder }
  const failing = [process.execPath, '-e', 'console.error("no model there"); process.exit(3)']
  await expect(CellProcessSupervisor.start({ ...options, argv: failing })).rejects.toMatchObject({
    code: 'E_CELL_START',
    message: expect.stringMatching(/cell-0 did not start.*exit code 3[^]*no model there/),
  })
  await expect(CellProcessSupervisor.start({ ...options, argv: ['/no/such/program'] })).rejects.toMatchObject({
    code: 'E_CELL_START',
    message: expect.stringContaining('/no/such/program cannot be run'),
  })
  const mute = [process.execPath, '-e', 'setInterval(() => 0, 1000); console.error(process.pid)']
  await expect(CellProcessSupervisor.start({ ...options, argv: mute, startMs: 500 })).rejects.toMatchObject({
    code: 'E_CELL_START',
    message: expect.stringContaining('500 ms allowed'),
  })
  const pid = Number(readFileSync(join(folder, 'cell-0.log'), 'utf8').trim().split('\n').at(-1))
  expect(isRunning(pid)).toBe(false)
})

test('kill -9 of the owner ends its cells and removes their sockets', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-test-'))
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }))
  const script = resolve(import.meta.dirname, '../../../../test/support/cell-owner.ts')
  const owner = spawn(process.execPath, ['--import', 'tsx', script, folder], { stdio: ['ignore', 'pipe', 'inherit'] })
  cleanups.push(() => void owner.kill('SIGKILL'))
  const line = await new Promise<string>((yes) => owner.stdout.once('data', (data: Buffer) => yes(data.toString())))
  const { pids, address } = JSON.parse(line) as { pids: number[]; address: string }
  expect(pids.every(isRunning)).toBe(true)
  owner.kill('SIGKILL')
  await expect.poll(() => pids.some(isRunning), { timeout: 10_000 }).toBe(false)
  expect(existsSync(dirname(address))).toBe(false)
})

test('what a killed owner and its killed cells left is swept, what is in use is not', async () => {
  const started = await start(1, { vocabSize: 8 })
  const dead = spawn(process.execPath, ['-e', ''])
  await new Promise((yes) => dead.once('exit', yes))
  const stale = mkdtempSync(join(tmpdir(), `gyre-cells-${dead.pid}-`))
  writeFileSync(join(stale, '0.sock'), '')
  const own = createRuntimeFolder()
  cleanups.push(() => rmSync(own, { recursive: true }))
  expect(await sweepRuntimeFolders()).toBeGreaterThanOrEqual(1)
  expect(existsSync(stale)).toBe(false)
  expect(existsSync(own)).toBe(true)
  expect((await cellOf(started, 0).health()).mode).toBe('training')
})

test('a temporary folder with too long a name is refused with what to do', () => {
  expect(() => socketPath('/x'.repeat(60), 0)).toThrow(expect.objectContaining({ code: 'E_CELL_SOCKET_PATH' }))
})
