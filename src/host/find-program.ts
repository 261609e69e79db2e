import { accessSync, constants, statSync } from 'node:fs'
import { delimiter, isAbsolute, join, resolve } from 'node:path'

/**
 * The file that running `name` starts, or undefined. A name with a slash is taken from `cwd`, any other from `path`,
 * a list like PATH.
 */
export function findProgram(name: string, path: string, cwd: string): string | undefined {
  if (name === '') return undefined
  const candidates = name.includes('/')
    ? [isAbsolute(name) ? name : resolve(cwd, name)]
    : path.split(delimiter).map((folder) => join(folder === '' ? cwd : folder, name))
  return candidates.find(isExecutable)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}
