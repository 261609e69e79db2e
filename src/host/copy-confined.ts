import { constants } from 'node:fs'
import { copyFile, lstat, mkdir, readdir, readlink, realpath, symlink } from 'node:fs/promises'
import { dirname, isAbsolute, join, relative, resolve, sep } from 'node:path'

export interface ConfinementBreach {
  /** Relative to the folder. */
  readonly path: string
  readonly reason: string
}

/** The first entry that must not be copied: a link that leads out of the folder, or a thing that is no file. */
export async function findBreach(folder: string): Promise<ConfinementBreach | undefined> {
  const real = await realpath(folder)
  for (const entry of await readdir(folder, { withFileTypes: true, recursive: true })) {
    const path = join(entry.parentPath, entry.name)
    const name = relative(folder, path)
    if (entry.isSymbolicLink()) {
      const reason = await linkBreach(path, real)
      if (reason !== undefined) return { path: name, reason }
    } else if (!entry.isFile() && !entry.isDirectory()) {
      return { path: name, reason: 'is neither a file, a folder nor a link' }
    }
  }
  return undefined
}

async function linkBreach(path: string, root: string): Promise<string | undefined> {
  const target = await readlink(path)
  if (isAbsolute(target)) return `links to the absolute path ${target}`
  const lexical = resolve(await realpath(dirname(path)), target)
  const actual = await realpath(path).catch(() => lexical)
  return isInside(lexical, root) && isInside(actual, root) ? undefined : `links out of the folder, to ${target}`
}

function isInside(path: string, root: string): boolean {
  return path === root || path.startsWith(root + sep)
}

/**
 * Copies a folder into `to` (created when missing), links as links, modes kept. Nothing outside `from` is read.
 * @param skip entries of the top level left out.
 * @throws Error naming the entry that breaks confinement.
 */
export async function copyConfined(from: string, to: string, skip: (name: string) => boolean): Promise<void> {
  const breach = await findBreach(from)
  if (breach !== undefined) throw new Error(`${join(from, breach.path)} ${breach.reason}`)
  await copyFolder(from, to, skip)
}

async function copyFolder(from: string, to: string, skip: (name: string) => boolean): Promise<void> {
  await mkdir(to, { recursive: true })
  for (const entry of await readdir(from, { withFileTypes: true })) {
    if (skip(entry.name)) continue
    const source = join(from, entry.name)
    const target = join(to, entry.name)
    if (entry.isDirectory()) await copyFolder(source, target, () => false)
    else if (entry.isSymbolicLink()) await symlink(await readlink(source), target)
    else if ((await lstat(source)).isFile()) await copyFile(source, target, constants.COPYFILE_FICLONE)
  }
}
