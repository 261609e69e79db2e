/**
 * @file Runs one program to its end in a process group of its own, with limits, a deadline and capped output files,
 * and leaves nothing of it behind.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, constants, fstatSync, ftruncateSync, openSync } from 'node:fs'
import { endProcesses } from './end-processes.ts'
import type { Guard } from './guard.ts'
import { countOwnTasks, type ProcessSigns } from './process-table.ts'

const CAP_POLL_MS = 500
/** Longest delay a timer of Node can hold. [ms] */
const MAX_TIMER_MS = 2 ** 31 - 1
/** What a program's own leftovers get between SIGTERM and SIGKILL once the program itself has ended. [ms] */
const LEFTOVER_GRACE_MS = 200

export interface Limits {
  /** [bytes] 0 for no limit. */
  readonly memoryBytes: number
  /** [bytes] 0 for no limit. */
  readonly fileBytes: number
  /** 0 for no limit. */
  readonly processes: number
}

export interface SupervisedSpec {
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly timeoutMs: number
  /** Between SIGTERM and SIGKILL. [ms] */
  readonly graceMs: number
  readonly stdoutFile: string
  readonly stderrFile: string
  /** Bound of each output file; what comes after it is dropped. [bytes] */
  readonly outputBytes: number
  readonly limits: Limits
  /** Recognizes what the program starts. */
  readonly marker: string
  readonly folder: string
  /** The program itself does not feel SIGTERM, only what it starts: for one whose death would cut the grace short. */
  readonly shielded?: boolean
}

export interface SupervisedEnd {
  readonly exitCode: number | undefined
  readonly signal: string | undefined
  readonly timedOut: boolean
  readonly durationMs: number
}

/** @throws Error when the program cannot be started. */
export async function supervise(spec: SupervisedSpec, guard: Guard, signal: AbortSignal): Promise<SupervisedEnd> {
  guard.ensureStarted()
  const started = performance.now()
  const outputs = [openOutput(spec.stdoutFile), openOutput(spec.stderrFile)]
  const trim = (): void => outputs.forEach((fd) => capOutput(fd, spec.outputBytes))
  const capTimer = setInterval(trim, CAP_POLL_MS)
  try {
    if (signal.aborted) return { exitCode: undefined, signal: 'SIGTERM', timedOut: false, durationMs: 0 }
    const child = await spawnInGroup(spec, outputs)
    const group = child.pid ?? 0
    guard.add(group)
    const end = await untilEnd(child, group, spec, signal)
    await endProcesses(signsOf(spec, group), LEFTOVER_GRACE_MS)
    guard.delete(group)
    return { ...end, durationMs: performance.now() - started }
  } finally {
    clearInterval(capTimer)
    trim()
    outputs.forEach((fd) => closeSync(fd))
  }
}

function signsOf(spec: SupervisedSpec, group: number): ProcessSigns {
  return { groups: [group], marker: `${spec.marker}\0`, folder: spec.folder }
}

async function spawnInGroup(spec: SupervisedSpec, [out, err]: readonly number[]): Promise<ChildProcess> {
  const [program = '', ...args] = withLimits(spec.argv, spec.limits, spec.shielded === true ? "trap '' TERM; " : '')
  const child = spawn(program, args, {
    detached: true,
    cwd: spec.cwd,
    env: spec.env,
    stdio: ['ignore', out, err],
  })
  await new Promise<void>((resolve, reject) => {
    child.once('spawn', resolve)
    child.once('error', reject)
  })
  return child
}

/**
 * The argv of a shell that sets what this system lets it set and then becomes the program.
 * @param before script that runs first, ending in `; `.
 */
export function withLimits(argv: readonly string[], limits: Limits, before = ''): readonly string[] {
  return ['/bin/sh', '-c', `${before}${limitScript(limits)}exec "$@"`, 'sh', ...argv]
}

/** Units of ulimit: KiB, 512-byte blocks, tasks. */
function limitScript(limits: Limits): string {
  const wanted: [string[], number][] = [[['-c'], 0]]
  if (limits.memoryBytes > 0) wanted.push([['-v'], Math.ceil(limits.memoryBytes / 1024)])
  if (limits.fileBytes > 0) wanted.push([['-f'], Math.ceil(limits.fileBytes / 512)])
  // The kernel counts all tasks of the user, so the sandbox's share comes on top of those that run already.
  if (limits.processes > 0) wanted.push([['-u', '-p'], countOwnTasks() + limits.processes])
  const lines = wanted.map(([flags, value]) =>
    // Tried in a subshell first: some shells end on a flag they do not know.
    flags.map((flag) => `{ (ulimit ${flag} ${value}) 2>/dev/null && ulimit ${flag} ${value}; }`).join(' || '),
  )
  return lines.map((line) => `${line} || :; `).join('')
}

async function untilEnd(
  child: ChildProcess,
  group: number,
  spec: SupervisedSpec,
  signal: AbortSignal,
): Promise<Omit<SupervisedEnd, 'durationMs'>> {
  let timedOut = false
  const ended = new Promise<Omit<SupervisedEnd, 'durationMs' | 'timedOut'>>((resolve) => {
    child.once('exit', (code, by) => resolve({ exitCode: code ?? undefined, signal: by ?? undefined }))
  })
  let killing: Promise<unknown> = Promise.resolve()
  const stop = (): void => {
    killing = endProcesses(signsOf(spec, group), spec.graceMs)
  }
  const timer = setTimeout(
    () => {
      timedOut = true
      stop()
    },
    Math.min(spec.timeoutMs, MAX_TIMER_MS),
  )
  signal.addEventListener('abort', stop, { once: true })
  if (signal.aborted) stop()
  try {
    const end = await ended
    clearTimeout(timer)
    await killing
    return { ...end, timedOut }
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', stop)
  }
}

/** Appending, so that a file cut to its cap goes on at its end and never has a hole. */
function openOutput(path: string): number {
  return openSync(
    path,
    constants.O_RDWR | constants.O_APPEND | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW,
    0o600,
  )
}

function capOutput(fd: number, bytes: number): void {
  if (fstatSync(fd).size > bytes) ftruncateSync(fd, bytes)
}
