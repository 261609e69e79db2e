/**
 * @file The private folder that holds the sockets of one run's cells.
 *
 * Its name carries the id of the process that owns it, so that the next run on this machine can remove
 * what a killed one left behind.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { GyreError } from '../../../core/errors.ts'

const PREFIX = 'gyre-cells-'
/** What every system accepts for the path of a Unix socket, its end included. [bytes] */
const MAX_SOCKET_PATH = 103

/** Makes the folder, mode 0700. */
export const createRuntimeFolder = (): string => mkdtempSync(join(tmpdir(), `${PREFIX}${process.pid}-`))

/** @throws GyreError E_CELL_SOCKET_PATH when the system's temporary folder has too long a name for a socket. */
export function socketPath(folder: string, index: number): string {
  const path = join(folder, `${index}.sock`)
  if (Buffer.byteLength(path) <= MAX_SOCKET_PATH) return path
  throw new GyreError(`${path} is too long for a Unix socket: set TMPDIR to a shorter folder`, {
    boundary: 'cell',
    code: 'E_CELL_SOCKET_PATH',
  })
}

/** Removes folders whose owner is dead and whose sockets nobody listens on. Returns how many. */
export async function sweepRuntimeFolders(): Promise<number> {
  let removed = 0
  for (const name of readdirSync(tmpdir())) {
    const owner = new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]
    if (owner === undefined || isAlive(Number(owner))) continue
    const folder = join(tmpdir(), name)
    // The owner may live in another process namespace that shares this folder.
    if (await isServed(folder)) continue
    rmSync(folder, { recursive: true, force: true })
    removed += 1
  }
  return removed
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

async function isServed(folder: string): Promise<boolean> {
  let names: string[]
  try {
    names = readdirSync(folder)
  } catch {
    return true
  }
  const answers = await Promise.all(names.map((name) => accepts(join(folder, name))))
  return answers.includes(true)
}

function accepts(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const answer = (isOpen: boolean) => (): void => {
      socket.destroy()
      resolve(isOpen)
    }
    socket.once('connect', answer(true))
    socket.once('error', answer(false))
    socket.setTimeout(1000, answer(true))
  })
}
