/** @file What every sandbox promises, checked with real processes. Call it from the adapter's test. */
import { spawn } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasCode } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import { listProcesses, hasProcFs } from '../host/process-table.ts'
import type { ProcessEnd, Sandbox, SandboxInstance, SandboxLimits } from './sandbox.ts'
import type { Task } from './task.ts'

export interface SandboxUnderTest {
  readonly make: (baseFolder: string) => Sandbox
  /** The adapter's file relative to `src`, and the class in it: started again in a process that is killed. */
  readonly module: string
  readonly className: string
}

const NO_LIMITS: SandboxLimits = { memoryBytes: 0, fileBytes: 0, processes: 0 }
const never = new AbortController().signal
const src = resolve(import.meta.dirname, '..')

interface Ran {
  readonly end: ProcessEnd
  readonly stdout: string
  readonly stderr: string
}

/** A task folder with one environment file, a Dockerfile and a test that nobody may read too early. */
export function makeTaskFolder(parent: string): Task {
  const folder = mkdtempSync(join(parent, 'task-'))
  mkdirSync(join(folder, 'environment', 'nested'), { recursive: true })
  mkdirSync(join(folder, 'tests'))
  writeFileSync(join(folder, 'environment', 'Dockerfile'), 'FROM scratch\n')
  writeFileSync(join(folder, 'environment', 'nested', 'data.txt'), 'from the environment\n')
  writeFileSync(join(folder, 'environment', 'tool.sh'), '#!/bin/sh\necho tool ran\n')
  chmodSync(join(folder, 'environment', 'tool.sh'), 0o755)
  writeFileSync(join(folder, 'tests', 'test.sh'), 'echo the-hidden-answer\n')
  return { name: 'sample', folder, instruction: 'do it', agentTimeoutMs: 10_000, verifierTimeoutMs: 10_000 }
}

/** Text that makes a process recognizable from outside, in its arguments. */
function uniqueSeconds(): string {
  return `9${Math.floor(Math.random() * 1e6)}.${process.pid}`
}

/** Live processes that have the text in their command line, seen from the host. */
function running(text: string): readonly number[] {
  return listProcesses()
    .map((p) => p.pid)
    .filter((pid) => pid !== process.pid && commandLine(pid).includes(text))
}

function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
  } catch {
    return ''
  }
}

async function until(what: string, condition: () => boolean): Promise<void> {
  for (const end = performance.now() + 15_000; !condition();) {
    if (performance.now() > end) throw new Error(`waited 15 s in vain for: ${what}`)
    await sleep(20)
  }
}

export function sandboxContract(name: string, subject: SandboxUnderTest): void {
  describe(`sandbox ${name}`, () => {
    let folder = ''
    let task: Task
    let sandbox: Sandbox
    const open: SandboxInstance[] = []

    beforeAll(() => {
      folder = mkdtempSync(join(tmpdir(), 'gyre-contract-'))
      task = makeTaskFolder(folder)
      sandbox = subject.make(join(folder, 'base'))
    })
    afterAll(async () => {
      for (const instance of open) await instance.destroy()
      rmSync(folder, { recursive: true, force: true })
    })

    async function create(limits = NO_LIMITS): Promise<SandboxInstance> {
      const executionFolder = mkdtempSync(join(folder, 'execution-'))
      const instance = await sandbox.create({
        executionId: executionId(`x${open.length}`),
        task,
        executionFolder,
        limits,
        gatewayUrl: 'http://127.0.0.1:9',
        readOnlyFolders: [],
      })
      open.push(instance)
      return instance
    }

    async function sh(
      instance: SandboxInstance,
      script: string,
      options: { env?: Record<string, string>; timeoutMs?: number; signal?: AbortSignal; cwd?: string } = {},
    ): Promise<Ran> {
      const logs = mkdtempSync(join(folder, 'logs-'))
      const end = await instance.run(
        {
          argv: ['/bin/sh', '-c', script],
          env: options.env ?? {},
          ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
          timeoutMs: options.timeoutMs ?? 20_000,
          stdoutFile: join(logs, 'out'),
          stderrFile: join(logs, 'err'),
        },
        options.signal ?? never,
      )
      return { end, stdout: readFileSync(join(logs, 'out'), 'utf8'), stderr: readFileSync(join(logs, 'err'), 'utf8') }
    }

    test('captures both streams and the exit code', async () => {
      const ran = await sh(await create(), 'echo out; echo err >&2; exit 7')
      expect(ran).toMatchObject({ stdout: 'out\n', stderr: 'err\n', end: { exitCode: 7, timedOut: false } })
    })

    test('starts in the workspace, which holds the environment without its container recipe', async () => {
      const instance = await create()
      const ran = await sh(instance, 'pwd; cat nested/data.txt; ./tool.sh; ls')
      expect(ran.stdout).toBe(`${instance.workspace}\nfrom the environment\ntool ran\nnested\ntool.sh\n`)
    })

    test('gives the program the environment it was given, and nothing of ours', async () => {
      process.env['GYRE_CONTRACT_SECRET'] = 'leaked'
      const instance = await create()
      const { stdout } = await sh(instance, 'env', { env: { GIVEN: 'a b', PATH: '/usr/bin:/bin' } })
      delete process.env['GYRE_CONTRACT_SECRET']
      const names = stdout
        .trim()
        .split('\n')
        .map((line) => line.split('=')[0] ?? '')
        .filter((key) => !['PWD', 'OLDPWD', 'SHLVL', '_'].includes(key))
      expect(names.sort()).toEqual(['GIVEN', 'GYRE_SANDBOX', 'HOME', 'LANG', 'PATH', 'TMPDIR'])
      expect(stdout).toContain('GIVEN=a b\n')
      expect(stdout).toContain(`HOME=${instance.home}\n`)
    })

    test('closes stdin', async () => {
      expect((await sh(await create(), 'cat; echo end')).stdout).toBe('end\n')
    })

    test('has home, temp and verifier-log folders of its own that the host sees', async () => {
      const instance = await create()
      const script = `echo h > "$HOME/f"; echo t > "$TMPDIR/f"; echo v > "${instance.verifierLogs}/f"; echo w > "${instance.workspace}/f"`
      expect((await sh(instance, script)).stderr).toBe('')
      const seen = [instance.hostHome, instance.hostVerifierLogs, instance.hostWorkspace].map((f) =>
        readFileSync(join(f, 'f'), 'utf8'),
      )
      expect(seen).toEqual(['h\n', 'v\n', 'w\n'])
    })

    test('keeps the workspace between runs, so that what the harness left can be scored', async () => {
      const instance = await create()
      await sh(instance, 'echo made > result.txt')
      expect((await sh(instance, 'cat result.txt')).stdout).toBe('made\n')
    })

    test('shows no test before the scorer brings them', async () => {
      const instance = await create()
      const before = await sh(instance, `cat "${instance.tests}/test.sh"; grep -r hidden-answer . "$HOME" "$TMPDIR"`)
      expect(before.stdout).toBe('')
      mkdirSync(instance.hostTests, { recursive: true })
      writeFileSync(join(instance.hostTests, 'test.sh'), 'the-hidden-answer\n')
      expect((await sh(instance, `cat "${instance.tests}/test.sh"`)).stdout).toBe('the-hidden-answer\n')
    })

    test('runs in a folder other than the workspace when asked', async () => {
      const instance = await create()
      const ran = await sh(instance, 'pwd; cat data.txt', { cwd: join(instance.workspace, 'nested') })
      expect(ran.stdout).toBe(`${instance.workspace}/nested\nfrom the environment\n`)
    })

    test('ends a program that runs out of time together with what it started in other sessions', async () => {
      const seconds = uniqueSeconds()
      const script = `setsid sleep ${seconds} & sleep ${seconds} & (env -i setsid sleep ${seconds} &) ; sleep ${seconds}`
      const { end } = await sh(await create(), script, { timeoutMs: 700 })
      expect(end.timedOut).toBe(true)
      expect(end.exitCode).toBeUndefined()
      expect(running(seconds)).toEqual([])
      expect(end.durationMs).toBeLessThan(10_000)
    })

    test('ends a program that ignores SIGTERM', async () => {
      const seconds = uniqueSeconds()
      const { end } = await sh(await create(), `trap '' TERM; sleep ${seconds}; sleep ${seconds}`, { timeoutMs: 300 })
      expect(end).toMatchObject({ timedOut: true, exitCode: undefined })
      expect(running(seconds)).toEqual([])
    })

    test('lets a program clean up on SIGTERM', async () => {
      const instance = await create()
      const stop = new AbortController()
      const run = sh(instance, `trap 'echo bye; exit 3' TERM; touch up; while :; do sleep 0.05; done`, {
        signal: stop.signal,
      })
      await until('the program to start', () => existsSync(join(instance.hostWorkspace, 'up')))
      stop.abort()
      const ran = await run
      expect(ran.stdout).toContain('bye')
      expect(ran.end.timedOut).toBe(false)
    })

    test('does not start anything once the signal has aborted', async () => {
      const ran = await sh(await create(), 'echo ran', { signal: AbortSignal.abort() })
      expect(ran).toMatchObject({ stdout: '', end: { exitCode: undefined, timedOut: false } })
    })

    test('ends what a finished program left in the background', async () => {
      const seconds = uniqueSeconds()
      const { end } = await sh(await create(), `setsid sleep ${seconds} >/dev/null 2>&1 & exit 0`)
      expect(end.exitCode).toBe(0)
      expect(running(seconds)).toEqual([])
    })

    test('says which program it cannot find', async () => {
      const instance = await create()
      const logs = mkdtempSync(join(folder, 'logs-'))
      const spec = { env: {}, timeoutMs: 5000, stdoutFile: join(logs, 'out'), stderrFile: join(logs, 'err') }
      for (const program of ['no-such-program', './no-such-file', '/no/such/path']) {
        const error: unknown = await instance.run({ ...spec, argv: [program] }, never).catch((e: unknown) => e)
        expect(hasCode(error, 'E_SANDBOX_SPAWN')).toBe(true)
        expect(String(error)).toContain(program)
      }
    })

    test('runs a program of the workspace', async () => {
      const instance = await create()
      const logs = mkdtempSync(join(folder, 'logs-'))
      const end = await instance.run(
        {
          argv: ['./tool.sh'],
          env: {},
          timeoutMs: 5000,
          stdoutFile: join(logs, 'out'),
          stderrFile: join(logs, 'err'),
        },
        never,
      )
      expect(end.exitCode).toBe(0)
      expect(readFileSync(join(logs, 'out'), 'utf8')).toBe('tool ran\n')
    })

    test('limits the size of a file', async () => {
      const instance = await create({ ...NO_LIMITS, fileBytes: 64 * 1024 })
      const ran = await sh(instance, 'head -c 1000000 /dev/zero > big; wc -c < big')
      expect(Number(ran.stdout.trim())).toBeLessThanOrEqual(64 * 1024)
    })

    test('limits the memory of a process', async () => {
      const instance = await create({ ...NO_LIMITS, memoryBytes: 64 * 2 ** 20 })
      const ran = await sh(instance, 'head -c 300000000 /dev/zero | tail -c 200000000 | wc -c')
      expect(Number(ran.stdout.trim())).toBeLessThan(200_000_000)
    })

    test('destroys its folders and processes, twice without harm', async () => {
      const instance = await create()
      await sh(instance, 'mkdir locked; touch locked/file; chmod 500 locked')
      await instance.destroy()
      await instance.destroy()
      const left = [instance.hostWorkspace, instance.hostHome, instance.hostVerifierLogs].filter((f) => existsSync(f))
      expect(left).toEqual([])
    })

    test('fails to create with the name of the entry that leaves the environment folder', async () => {
      const bad = makeTaskFolder(folder)
      const { symlinkSync } = await import('node:fs')
      symlinkSync('../../../etc', join(bad.folder, 'environment', 'escape'))
      const spec = { executionFolder: folder, limits: NO_LIMITS, gatewayUrl: 'http://127.0.0.1:9', readOnlyFolders: [] }
      const error: unknown = await sandbox
        .create({ ...spec, executionId: executionId('bad'), task: bad })
        .catch((e: unknown) => e)
      expect(hasCode(error, 'E_SANDBOX_CREATE')).toBe(true)
      expect(String(error)).toContain('escape')
    })

    test.skipIf(!hasProcFs)('leaves nothing behind when the control process is killed', async () => {
      const base = join(folder, 'killed-base')
      const seconds = uniqueSeconds()
      const child = spawnControl(subject, base, task, folder, seconds)
      try {
        await until('three sleeping programs', () => running(seconds).length >= 3)
        child.kill('SIGKILL')
        await until('all of them to end', () => running(seconds).length === 0)
        await until('the folders to go', () => readdirSync(base).length === 0)
        expect(running(seconds)).toEqual([])
      } finally {
        child.kill('SIGKILL')
      }
    })

    test.skipIf(!hasProcFs)(
      'sweeps what a killed control process and its killed guard left, and no live folder',
      async () => {
        const base = join(folder, 'swept-base')
        const survivor = subject.make(base)
        const live = await survivor.create({
          executionId: executionId('live'),
          task,
          executionFolder: folder,
          limits: NO_LIMITS,
          gatewayUrl: 'http://127.0.0.1:9',
          readOnlyFolders: [],
        })
        const seconds = uniqueSeconds()
        const child = spawnControl(subject, base, task, folder, seconds)
        try {
          await until('three sleeping programs', () => running(seconds).length >= 3)
          const guards = running('gyre-guard').filter((pid) =>
            commandLine(pid).includes(`${base}/${child.pid?.toString(36)}-`),
          )
          expect(guards).toHaveLength(1)
          guards.forEach((pid) => process.kill(pid, 'SIGKILL'))
          child.kill('SIGKILL')
          await until('the control process to be gone', () => !listProcesses().some((p) => p.pid === child.pid))
          const swept = await subject.make(base).sweep()
          expect(swept.folders).toBe(1)
          expect(running(seconds)).toEqual([])
          expect(existsSync(live.hostWorkspace)).toBe(true)
          expect(await subject.make(base).sweep()).toEqual({ processes: 0, folders: 0 })
        } finally {
          child.kill('SIGKILL')
          await live.destroy()
        }
      },
    )
  })
}

/** A control process of its own that runs three sleeping programs in one sandbox until it is killed. */
function spawnControl(
  subject: SandboxUnderTest,
  base: string,
  task: Task,
  folder: string,
  seconds: string,
): ReturnType<typeof spawn> {
  const logs = mkdtempSync(join(folder, 'control-'))
  const code = `
    const { ${subject.className} } = await import(${JSON.stringify(join(src, subject.module))})
    const instance = await new ${subject.className}({ baseFolder: ${JSON.stringify(base)} }).create({
      executionId: 'k', task: ${JSON.stringify(task)}, executionFolder: ${JSON.stringify(logs)},
      limits: { memoryBytes: 0, fileBytes: 0, processes: 0 }, gatewayUrl: 'http://127.0.0.1:9', readOnlyFolders: [] })
    await instance.run({ argv: ['/bin/sh', '-c', 'setsid sleep ${seconds} & (env -i setsid sleep ${seconds} &) ; sleep ${seconds}'], env: {},
      timeoutMs: 600000, stdoutFile: ${JSON.stringify(join(logs, 'out'))}, stderrFile: ${JSON.stringify(join(logs, 'err'))} },
      new AbortController().signal)`
  return spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], {
    cwd: resolve(src, '..'),
    stdio: ['ignore', 'ignore', 'inherit'],
  })
}
