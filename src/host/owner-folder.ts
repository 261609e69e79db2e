/**
 * @file One folder per control process under the temp folder, with its owner's identity in it, so that a later start
 * can tell a dead owner's leftovers from a live neighbor's folders.
 */
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync, readlinkSync } from 'node:fs'
import { chmod, lstat, mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { hostname, tmpdir, userInfo } from 'node:os'
import { join } from 'node:path'
import { endProcesses } from './end-processes.ts'
import { readProcess } from './process-table.ts'

/** The variable that marks everything a sandbox started: `GYRE_SANDBOX=OWNER/NUMBER`. */
export const MARKER = 'GYRE_SANDBOX'
const IDENTITY = 'owner.json'
const NAMELESS_MS = 60 * 60_000

interface Identity {
  readonly pid: number
  readonly started: string
  readonly host: string
  readonly boot: string
  readonly pidNamespace: string
}

/** `TMP/gyre-UID`: private to this user. */
export function defaultBaseFolder(): string {
  return join(tmpdir(), `gyre-${userInfo().uid}`)
}

export interface OwnerFolder {
  readonly id: string
  readonly path: string
}

/** Creates this process's folder under `base`. @throws Error when the base belongs to somebody else. */
export async function createOwnerFolder(base: string): Promise<OwnerFolder> {
  await ensurePrivate(base)
  const id = `${process.pid.toString(36)}-${randomBytes(4).toString('hex')}`
  const path = join(base, id)
  await mkdir(path, { mode: 0o700 })
  await writeFile(join(path, IDENTITY), JSON.stringify(ownIdentity()), { mode: 0o600 })
  return { id, path }
}

async function ensurePrivate(base: string): Promise<void> {
  await mkdir(base, { recursive: true, mode: 0o700 })
  const stat = await lstat(base)
  const uid = process.getuid?.()
  if (!stat.isDirectory() || (uid !== undefined && stat.uid !== uid)) {
    throw new Error(`${base} is not a folder of this user: remove it or set another TMPDIR`)
  }
  if ((stat.mode & 0o077) !== 0) await chmod(base, 0o700)
}

/** Kills what dead owners left running and removes their folders. A live owner's folder is never touched. */
export async function sweepOwnerFolders(base: string): Promise<{ processes: number; folders: number }> {
  const swept = { processes: 0, folders: 0 }
  for (const id of await readdir(base).catch(() => [])) {
    const path = join(base, id)
    const identity = await readIdentity(path)
    if (identity === undefined ? !(await isAbandoned(path)) : !isDead(identity)) continue
    const { met } = await endProcesses({ groups: [], marker: `${MARKER}=${id}/`, folder: path }, 0)
    swept.processes += met
    swept.folders += await countExecutions(path)
    await removeFolder(path)
  }
  return swept
}

/** A folder without an identity is one that is being made, or whose owner died while making it. */
async function isAbandoned(path: string): Promise<boolean> {
  const stat = await lstat(path).catch(() => undefined)
  return stat !== undefined && Date.now() - stat.mtimeMs > NAMELESS_MS
}

async function countExecutions(path: string): Promise<number> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => [])
  return entries.filter((e) => e.isDirectory()).length
}

async function readIdentity(path: string): Promise<Identity | undefined> {
  try {
    return JSON.parse(await readFile(join(path, IDENTITY), 'utf8')) as Identity
  } catch {
    return undefined
  }
}

/** Only what is certain counts as dead: another host or another PID namespace may still run it. */
function isDead(owner: Identity): boolean {
  const own = ownIdentity()
  if (owner.host !== own.host) return false
  if (owner.boot !== own.boot) return true
  if (owner.pidNamespace !== own.pidNamespace) return false
  const now = readProcess(owner.pid)
  return now === undefined || now.started !== owner.started
}

function ownIdentity(): Identity {
  return {
    pid: process.pid,
    started: readProcess(process.pid)?.started ?? '',
    host: hostname(),
    boot: existsSync('/proc/sys/kernel/random/boot_id')
      ? readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
      : '',
    pidNamespace: existsSync('/proc/self/ns/pid') ? readlinkSync('/proc/self/ns/pid') : '',
  }
}

/** Removes a tree even when a program in it took write permission away from folders. */
export async function removeFolder(path: string): Promise<void> {
  const options = { recursive: true, force: true, maxRetries: 3, retryDelay: 50 } as const
  try {
    await rm(path, options)
  } catch {
    await makeWritable(path)
    await rm(path, options)
  }
}

async function makeWritable(path: string): Promise<void> {
  await chmod(path, 0o700).catch(() => undefined)
  for (const entry of await readdir(path, { withFileTypes: true }).catch(() => [])) {
    if (entry.isDirectory()) await makeWritable(join(path, entry.name))
  }
}
