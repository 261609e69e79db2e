/**
 * @file Which processes of this machine belong to a program that was started.
 *
 * A process group is not enough: a program may start sessions of its own (agents do, for every command), and a
 * daemon leaves the tree. So a member is recognized by any of four signs: process group or session, a marker in its
 * initial environment, a working folder under the sandbox, or a parent that is a member.
 * Without /proc (macOS) the environment and the working folder cannot be read, and only groups and parents count.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, readdirSync, readlinkSync, statSync } from 'node:fs'

export interface ProcessInfo {
  readonly pid: number
  readonly parent: number
  readonly group: number
  readonly session: number
  readonly hasTerminal: boolean
  /** Threads. */
  readonly tasks: number
  /** Start time in clock ticks since boot; tells a process from a later one with its pid. Empty where unknown. */
  readonly started: string
}

export interface ProcessSigns {
  /** Leaders of process groups. */
  readonly groups: readonly number[]
  /** `NAME=value` as it stands in the environment; a prefix of the value matches too. */
  readonly marker: string
  /** A folder that only this program works in. */
  readonly folder: string
}

export const hasProcFs: boolean = existsSync('/proc/self/environ')

/** Every live process that this user may see; zombies are left out. */
export function listProcesses(): readonly ProcessInfo[] {
  if (!hasProcFs) return listWithPs()
  const found: ProcessInfo[] = []
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const info = readProcess(Number(name))
    if (info !== undefined) found.push(info)
  }
  return found
}

/** undefined when there is no such live process. */
export function readProcess(pid: number): ProcessInfo | undefined {
  if (!hasProcFs) return listWithPs().find((p) => p.pid === pid)
  const stat = readOrEmpty(`/proc/${pid}/stat`)
  // The name in parentheses may hold anything, also parentheses: fields are counted from the last one.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  if (stat === '' || fields[0] === 'Z' || fields[0] === 'X') return undefined
  return {
    pid,
    parent: Number(fields[1]),
    group: Number(fields[2]),
    session: Number(fields[3]),
    hasTerminal: fields[4] !== '0',
    tasks: Number(fields[17]),
    started: fields[19] ?? '',
  }
}

/** Pids of all members, never this process itself. */
export function findMembers(signs: ProcessSigns): readonly number[] {
  const all = listProcesses()
  const members = new Set(all.filter((p) => p.pid !== process.pid && isMember(p, signs)).map((p) => p.pid))
  for (let grew = members.size > 0; grew;) {
    grew = false
    for (const p of all) {
      if (p.pid === process.pid || members.has(p.pid) || !members.has(p.parent)) continue
      members.add(p.pid)
      grew = true
    }
  }
  return [...members]
}

function isMember(p: ProcessInfo, signs: ProcessSigns): boolean {
  if (signs.groups.includes(p.group) || signs.groups.includes(p.session)) return true
  if (!hasProcFs) return false
  if (`\0${readOrEmpty(`/proc/${p.pid}/environ`)}`.includes(`\0${signs.marker}`)) return true
  // A person who looks around in a sandbox has a terminal and must not lose the shell.
  return !p.hasTerminal && isUnder(workingFolder(p.pid), signs.folder)
}

/** Threads of this user's processes now. [tasks] */
export function countOwnTasks(): number {
  const uid = process.getuid?.() ?? -1
  return listProcesses()
    .filter((p) => !hasProcFs || ownerOf(p.pid) === uid)
    .reduce((sum, p) => sum + p.tasks, 0)
}

function isUnder(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`)
}

function workingFolder(pid: number): string {
  try {
    return readlinkSync(`/proc/${pid}/cwd`)
  } catch {
    return ''
  }
}

function ownerOf(pid: number): number {
  return statSync(`/proc/${pid}`, { throwIfNoEntry: false })?.uid ?? -1
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}

function listWithPs(): readonly ProcessInfo[] {
  const text = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,pgid=,stat=,tty=,lstart='], {
    encoding: 'utf8',
    timeout: 10_000,
  })
  return text.split('\n').flatMap((line) => {
    const [pid, parent, group, state, tty, ...started] = line.trim().split(/\s+/)
    if (pid === undefined || pid === '' || state === undefined || state.startsWith('Z')) return []
    return [
      {
        pid: Number(pid),
        parent: Number(parent),
        group: Number(group),
        session: Number(group),
        hasTerminal: tty !== '??' && tty !== '?',
        tasks: 1,
        started: started.join(' '),
      },
    ]
  })
}
